"""Arguments that cannot be are refused where a spec is read; the message says which, and what could be."""

import pytest

import posjax as pj

REFUSED = [
    ("peg(kernel_size=4)", "odd kernel_size, which has a middle, got 4"),
    ("fourier(features=7)", "even and positive, got 7"),
    ("learned_factorized(combine='summ')", "cannot 'summ'; did you mean 'sum'"),
    ("alibi('left')", "no direction 'left'; did you mean 'split'|no direction 'left'; known: both, offset, split"),
    ("alibi_pi(0)", "original_length of at least 1, got 0"),
    ("lookhere(60)", "fields of view of 180, 90, 45 degrees, got fov=60"),
    ("lookhere(undirected=-1)", "number of heads or None, got -1"),
    ("lookhere(slope=-1)", "cannot be negative, got -1"),
    ("kerple('exp')", "no kind 'exp'"),
    ("swin_v2(0)", "hidden_dim of at least 1, got 0"),
    ("swin_v2(pretrained_window=(0, 3))", r"tuple of sizes, got \(0, 3\)"),
    ("dpb(1)", "hidden_dim of at least 2, got 1"),
    ("fire(init_c=0)", "positive init_c, init_L and eps"),
    ("dape(alibi(), 0)", "hidden_dim of at least 1, got 0"),
    ("dape(alibi(), kernel_size=2)", "odd kernel_size, which has a middle, got 2"),
    ("transformer_xl(clamp_len=0)", "at least 1, or -1 for none; got 0"),
    ("deberta(position_buckets=7)", "even and at least 4, or -1 for none; got 7"),
    ("deberta(max_relative_positions=129)", "at least 130 here, got 129"),
    ("deberta(pos_att_type=())", r"one or both of c2p, p2c; got \(\)"),
    ("deberta(pos_att_type='c2p')", "takes a tuple of text, got 'c2p'"),
    ("deberta(pos_att_type=('c2p', 'c2c'))", "no attention of type 'c2c'; did you mean"),
    ("shaw(max_relative_position=None, right=2)", "right=2 needs a max_relative_position"),
    ("tupe() + tupe()", "only one part of a sum"),
    ("randomized(length=0)", "randomized needs a length of at least 1, got 0"),
    ("longformer(window=3)", "it must be even, got 3"),
    ("dape(rope())", "dape takes an encoding that only biases logits"),
    ("dual_chunk(chunk=4, local=5)", "at most chunk=4, got 5"),
    ("dual_chunk(chunk=4)", "dual_chunk needs local"),
    ("cape(max_local_shift=-1)", "must not be negative, got 5.0 and -1"),
    ("cape(max_global_scaling=0.5)", "max_global_scaling=0.5"),
    ("axis(index=3)", "is 0, 1 or 2, or two of them .*; got 3"),
    ("rope(fraction=0)", "fraction=.* above 0 and at most 1, got 0"),
    ("rope(scaling=rope())", r"takes a frequency scaling, as in scaling=linear\(factor=2\), got rope\(\)"),
    ("rope(scaling=2)", "takes a frequency scaling.*got 2"),
    ("p_rope(proportion=-1)", "within 0 and 1, got -1"),
    ("hope()", "hope needs original_length"),
    ("linear(factor=2)", r"linear is no encoding but an argument of one, as in rope\(scaling=linear"),
    ("mrope(sections=(1, 2))", r"three channel counts, as in \(16, 24, 24\); got \(1, 2\)"),
    ("mrope(sections=(1, 2, -1))", r"three channel counts.*got \(1, 2, -1\)"),
    ("mrope(time_last=True, interleaved=True)", "an order of its own: leave interleaved out"),
    ("mrope(sections=(1, 1, 2), time_last=True)", r"or the row one more; got sections=\(1, 1, 2\)"),
    ("mhrope(heads=(1, 2))", r"three numbers of heads, as in \(2, 3, 3\); got \(1, 2\)"),
    ("axial_rope(axes_dims=(3, 5))", r"even channel counts, .*; got \(3, 5\)"),
    ("axial_rope(base=(9, 7), axes_dims=(2, 4, 2))", r"takes one base for each axis of axes_dims=\(2, 4, 2\)"),
    ("axial_rope(axes_dims=(2, 4), scaling=ntk(factor=2))", "takes neither frequencies='split' nor a scaling"),
    ("dinov3(shift_coords=-1)", r"shift_coords=...\) must be at least 0, got -1"),
    ("dinov3(jitter_coords=0.5)", r"jitter_coords=...\) must be at least 1, got 0.5"),
    ("liere(generator_dim=1)", "at least 2 channels, got generator_dim=1"),
    ("rope_mixed(layout='hlf')", "rope_mixed has no layout 'hlf'"),
    ("fope(original_length=6)", "keeps no frequency for original_length=6"),
    (
        "stick_breaking() + rope() + stick_breaking(attend_current=True)",
        "only one part of a sum can stand for the softmax",
    ),
    (
        "rope() + learned_sink() + stick_breaking()",
        r"stick_breaking\(\) stands for the softmax, in which a sink has its share",
    ),
    ("log_n(original_length=1)", "at least 2, got 1"),
    ("tapa(theta=1)", "must lie between 0 and 1, got 1"),
    ("rerope(step=2)", "between 0 .* and 1 .*, got 2"),
    ("(self_extend() >> rope()) + (rerope() >> rope())", "only one part of a sum"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=[spec for spec, _ in REFUSED])
def test_refusals(spec, message):
    with pytest.raises(ValueError, match=message):
        pj.parse(spec)
