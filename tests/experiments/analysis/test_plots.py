"""Pictures show their data, also for grids that are not square, for one head and for one seed."""

import numpy as np
import pytest

from experiments.analysis import page, plots
from experiments.analysis.positions import similarity_map
from experiments.analysis.vit import filter_components
from experiments.report.statistics import mean_interval
from posjax.describe.figures import save


def rng():
    return np.random.default_rng(0)


def test_a_tile_stands_at_its_row_and_column():
    found = similarity_map(rng().standard_normal((3, 5, 8)))
    figure = plots.similarity(found)
    axes = figure.axes[0]
    drawn = np.asarray(axes.images[0].get_array())
    x, y = axes.get_xticks()[4], axes.get_yticks()[2]
    assert [axes.get_xticklabels()[4].get_text(), axes.get_yticklabels()[2].get_text()] == ["4", "2"]
    height, width = (side // 2 for side in (drawn.shape[0] // 3, drawn.shape[1] // 5))
    tile = drawn[int(y) - height + 2 : int(y) + height - 1, int(x) - width + 2 : int(x) + width - 1]
    assert np.nanmax(tile) == pytest.approx(1)
    assert found[2, 4, 2, 4] == pytest.approx(1)
    # The tile's brightest cell is its own place: last column, last row.
    assert (np.argwhere(tile > 0.999).mean(axis=0) > 0.6 * np.array(tile.shape)).all()


def figures():
    maps = {f"layer {i + 1}": rng().standard_normal((2, 3, 4, 3, 4)) for i in range(5)}
    use, wave = rng().uniform(size=(5, 2, 8)), rng().standard_normal((5, 2, 2, 8))
    intervals = {i: mean_interval([10, 20 + 10.0 * i]) for i in range(4)}
    one = {share / 4: mean_interval([100.0]) for share in range(4)}
    yield plots.around_the_middle(maps, "bias", "logits")
    yield plots.around_the_middle({"all layers": np.ones((1, 1, 6, 1, 6))}, "bias", "logits")
    yield plots.filters(*filter_components(rng().standard_normal((2, 2, 1, 5))).values())
    yield plots.filters(*filter_components(rng().standard_normal((3, 3, 2, 5))).values())
    images, shares = rng().integers(0, 256, (3, 8, 12, 3), np.uint8), rng().dirichlet(np.ones(6), 3).reshape(3, 2, 3)
    yield plots.rollouts(images[..., :1], shares, ["$a"] * 3)
    yield plots.distance_by_depth(rng().uniform(0, 9, (1, 1, 1)), 5.0)
    yield plots.position_by_depth(rng().uniform(size=(2, 13, 3)), 0.1)
    yield plots.position_by_depth(np.full((1, 2, 3), [np.nan, 1.0, 0.5]), 0.1)
    yield plots.robustness(one, intervals, 2, 0.1)
    yield page.frequency_shares(use, np.linalg.norm(wave, axis=1))
    yield plots.wave_vectors(wave[:1], use[:1])


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path):
    """Beside those of test_analyse.py."""
    for index, figure in enumerate(figures()):
        assert save(figure, tmp_path / f"{index}.png", dpi=50).stat().st_size > 1000
