"""The charts of the measured pages, as Vega-Lite: Altair draws them without data, which the page inserts by name.

Colours, marks and dashes are fields of the data, so charts show encodings like all other figures; dark pages use lighter
colours.
"""

from typing import Any

import altair as alt

VALUES = "values"  # the named data of all charts
_TOOLTIP = [
    alt.Tooltip(f"{name}:N", title=title) for name, title in (("label", "row"), ("where", "at"), ("text", "mean"))
]


def charts() -> dict[str, Any]:
    """Returns {name: Vega-Lite}."""
    made = {"lines": lines(), "dots": dots(), "depth": depth()}
    return {name: chart.to_dict() for name, chart in made.items()}


def lines() -> alt.LayerChart:
    """A metric over length or resolution, with its interval over seeds; a rule at the trained one."""
    base = alt.Chart(alt.NamedData(name=VALUES)).encode(
        x=alt.X("x:Q", scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(grid=False, title=None)),
        detail="label:N",
    )
    color = alt.Color("color:N", scale=None)
    y = alt.Y("mean:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=None))
    band = base.mark_area(opacity=0.14, clip=True).encode(
        y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q", color=color
    )
    line = base.mark_line(strokeWidth=2).encode(y=y, color=color, strokeDash=alt.StrokeDash("dash:N", scale=None))
    point = base.mark_point(filled=True, size=50, opacity=1).encode(
        y=y, color=color, shape=alt.Shape("shape:N", scale=None), tooltip=_TOOLTIP
    )
    trained = base.transform_filter("datum.trained > 0").transform_aggregate(trained="min(trained)")
    rule = trained.mark_rule(strokeDash=[4, 4], opacity=0.7).encode(x="trained:Q")
    return alt.layer(band, rule, line, point).properties(width="container", height=340)


def dots() -> alt.LayerChart:
    """Draws a metric of each row: seeds as ticks, the mean with its interval; a rule marks no encoding."""
    base = alt.Chart(alt.NamedData(name=VALUES)).encode(
        y=alt.Y("label:N", sort=None, axis=alt.Axis(title=None, labelLimit=150))
    )
    color = alt.Color("color:N", scale=None)
    x = alt.X("mean:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=None, tickCount=6))
    bar = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=alt.Scale(zero=False)), x2="high:Q", color=color)
    point = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, color=color, shape=alt.Shape("shape:N", scale=None), tooltip=_TOOLTIP
    )
    seeds = base.transform_flatten(["seeds"]).mark_tick(thickness=1, opacity=0.6).encode(x="seeds:Q", color=color)
    none = alt.Chart(alt.NamedData(name=VALUES)).transform_filter("datum.reference")
    rule = none.mark_rule(strokeDash=[2, 3], opacity=0.7).encode(x="mean:Q")
    return alt.layer(rule, bar, seeds, point).properties(width="container")


def depth() -> alt.FacetChart:
    """The share found by length and depth, in per cent, a panel for each row."""
    cell = (
        alt.Chart()
        .mark_rect()
        .encode(
            x=alt.X("length:O", axis=alt.Axis(title="length", labelAngle=0, format="d")),
            y=alt.Y("depth:O", axis=alt.Axis(title="depth")),
            color=alt.Color("share:Q", scale=alt.Scale(domain=[0, 100], scheme="viridis"), legend=None),
            tooltip=_TOOLTIP,
        )
    )
    text = cell.mark_text(fontSize=11).encode(
        text=alt.Text("share:Q", format=".0f"),
        color=alt.condition("datum.share > 60", alt.value("#000000"), alt.value("#ffffff")),
    )
    panel = alt.layer(cell, text).properties(width=170, height=120)
    facet = alt.Facet("label:N", header=alt.Header(title=None))
    made = panel.facet(facet=facet, columns=3, data=alt.NamedData(name=VALUES))
    return made.resolve_axis(x="independent", y="independent")
