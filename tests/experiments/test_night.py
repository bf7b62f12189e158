"""The plan of a night of large experiments."""

from configs.papers.full import partial_rope_124m
from experiments import night
from experiments.report.studies import study_of


def test_a_plan_counts_trainings_operations_and_bytes():
    config = partial_rope_124m.get_config()
    cost = night.cost(config)
    assert cost.trainings == 9 * 3
    parameters = 12 * 12 * 768**2 + 50_304 * 768  # the head's are the token embedding's
    operations = 6 * parameters + 6 * 12 * 768 * 1024  # of a token
    assert abs(cost.flops / (27 * operations * 4768 * 524_288) - 1) < 0.01
    assert abs(cost.state / (3 * 4 * parameters) - 1) < 0.01
    assert cost.disk == 27 * 3 * cost.state


def test_words_in_capitals_are_paths_to_give(tmp_path):
    fox = study_of("fox_125m")
    words, missing = night.command_of(fox, {"DOCUMENTS": "/texts"}, tmp_path)
    assert words[:2] == ["-m", "experiments.ablate"]
    assert {"--config.data.files=/texts", f"--workdir={tmp_path}/fox_125m"} <= {*words}
    assert missing == "TOKENIZER"
    assert night.command_of(fox, {"DOCUMENTS": "/texts", "TOKENIZER": "/t"}, tmp_path)[1] is None
