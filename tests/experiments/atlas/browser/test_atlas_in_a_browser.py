"""The atlas as people meet it: opened from disk, by mouse, keyboard and screen reader, on a desktop and on a phone."""

import json
import re

import pytest

from experiments.atlas import site

pytestmark = pytest.mark.slow
PAGES = sorted(
    {
        name
        for path in site.STATIC.glob("*.js")
        for name in re.findall(r'atlas\.page\(\{name: "([\w-]+)"', path.read_text())
    }
)
ADDRESSES = {
    "card": "card?name=rope",
    "errata": "errata?row=left-padding",
    "record": "record?folder=resolutions&table=caltech101&metric=accuracy",
}
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1200, "height": 900}
NARROW = {"width": 360, "height": 740}
# Rules for each theme: the same page in other colours can fail by its contrast alone. Without preload, axe requests nothing.
AXE = {"light": {"preload": False}, "dark": {"preload": False, "runOnly": ["color-contrast"]}}


def too_wide(page):
    """The pixels by which a page scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_on_desktop_and_phone_in_both_themes(watched, axe, tmp_path, name):
    """No error, no request but of files, no sideways scrolling, nothing that axe finds; and a screenshot of each."""
    page = watched.open(ADDRESSES.get(name, name))
    assert page.locator("main h1").inner_text()
    for theme, rules in AXE.items():
        page.emulate_media(color_scheme=theme)
        for what, size in (("phone", PHONE), ("desktop", DESKTOP)):
            page.set_viewport_size(size)
            assert too_wide(page) <= 0, f"{what}, {theme}"
            page.screenshot(path=tmp_path / f"{name}-{what}-{theme}.png")
        found = axe.run(page, options=rules).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found] == [], theme
    page.set_viewport_size(NARROW)
    assert too_wide(page) <= 0
    unnamed = "[...document.querySelectorAll('main canvas')].filter((each) => each.clientWidth && !each.ariaLabel)"
    assert page.evaluate(f"{unnamed}.length") == 0, "canvases without a text alternative"


def test_the_menu_and_a_map_lead_on(watched):
    page = watched.open("map")
    for link in page.locator("#menu a").all():
        link.click()
        page.locator(f'#menu a[aria-current=page][href="{link.get_attribute("href")}"]').wait_for()
        assert page.locator("main h1").count() == 1
    watched.open("map")
    page.locator('main a[href="#/card?name=alibi"]').first.click()
    page.locator("main h1", has_text="alibi").wait_for()
    page.go_back()
    page.locator("#menu a[aria-current=page]", has_text="Map").wait_for()


def test_legends_follow_the_theme_and_name_what_is_not_seen(watched):
    page = watched.open("images?name=lookhere")
    legend = page.locator(".legend")
    before = legend.locator("canvas").evaluate("(canvas) => canvas.toDataURL()")
    page.locator("#theme").click()
    page.wait_for_function("(before) => document.querySelector('.legend canvas').toDataURL() !== before", arg=before)
    assert legend.get_by_text("not seen").bounding_box()["width"] > 20


def test_a_switch_shows_its_bug_by_mouse_keyboard_and_voice(watched):
    page = watched.open("breaks")
    bug = page.locator("#axis-order")
    switch, picture = bug.get_by_role("switch"), bug.get_by_role("img").first  # its colours come after it
    picture.scroll_into_view_if_needed()
    right = picture.evaluate("(canvas) => canvas.toDataURL()")
    assert picture.get_attribute("aria-label").split(". ")[1].startswith("Right: ")
    switch.focus()
    page.keyboard.press("Space")
    assert switch.is_checked()
    assert ". With the bug: " in picture.get_attribute("aria-label")
    assert "With the bug: " in bug.locator("[aria-live]").inner_text()
    assert picture.evaluate("(canvas) => canvas.toDataURL()") != right
    switch.click()
    assert picture.evaluate("(canvas) => canvas.toDataURL()") == right
    page.locator("#switch-all").click()
    assert page.get_by_role("switch", checked=False).count() == 0


def test_a_bug_leads_to_its_row_of_the_errata(watched):
    page = watched.open("breaks?bug=left-padding")
    bug = page.locator("#left-padding")
    assert bug.get_by_role("switch").is_checked()
    bug.locator("summary").first.click()
    bug.get_by_role("link", name="Its row of the errata").click()
    page.locator(".asked h3", has_text="left padding").wait_for()


def test_a_patch_is_chosen_by_click_and_by_arrow_keys(watched):
    page = watched.open("images")
    board = page.locator("main canvas[tabindex]").first
    board.scroll_into_view_if_needed()
    box = board.bounding_box()
    board.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.1})
    page.get_by_role("img", name="what the patch in row 1, column 7 sees").first.wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("img", name="what the patch in row 1, column 6 sees").first.wait_for()


def test_a_grid_is_dragged_to_its_size_and_aspect(watched):
    page = watched.open("images")
    sizer = page.locator(".sizer canvas")
    sizer.scroll_into_view_if_needed()
    box = sizer.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 10 / 24, box["y"] + box["height"] * 6 / 24)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 20 / 24, box["y"] + box["height"] * 5 / 24, steps=5)
    page.mouse.up()
    page.mouse.move(box["x"] + 2, box["y"] + 2)  # without a pressed button nothing is dragged
    page.get_by_role("heading", name="Extrapolated to 5 × 20").wait_for()
    page.get_by_role("img", name="The new grid, 5 × 20 patches").wait_for()
    assert page.get_by_role("slider", name="new width").input_value() == "20"
    assert page.url.endswith("height=5&width=20")


def test_the_keyboard_reaches_the_page_past_the_menu(watched):
    page = watched.open("clocks")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("heading", name="Rotary clocks").wait_for()


def test_selects_keep_the_keyboard(watched):
    page = watched.open("clocks")
    select = page.get_by_role("combobox", name="Encoding")
    select.focus()
    page.keyboard.press("ArrowDown")
    assert "kind=p_rope" in page.url
    assert select.evaluate("(select) => select === document.activeElement")
    page = watched.open("measured?view=length")
    study = page.locator("#study")
    first = study.input_value()
    study.focus()
    study.select_option(index=1 - study.evaluate("(select) => select.selectedIndex"))
    page.wait_for_function("document.activeElement.id === 'study'")
    assert page.locator("#study").input_value() != first


BROKEN = {
    "clocks?kind=toString&toString=1": "Rotary clocks",
    "landscape?name=toString": "Logit landscape",
    "images?fov=33&name=lookhere": "What a patch sees",
    "images?name=constructor": "What a patch sees",
    "scaling?shown=constructor&what=valueOf": "Scaling lab",
    "distance?shown=constructor,rope&scaling=foo": "Against distance",
    "record?folder=resolutions&table=caltech101&metric=constructor": "No such records",
}


def test_an_address_with_mistakes_shows_the_page_or_says_so(watched):
    for address, title in BROKEN.items():
        page = watched.open(address)
        page.locator("main h1", has_text=title).wait_for()
        assert page.locator("main canvas").count() or "records" in title
    for address in ("nonsense", "map/", "%"):
        page = watched.open(address)
        page.locator("main h1", has_text=f"There is no page {address}").wait_for()
    page.locator("main").get_by_role("link", name="Map").click()
    page.get_by_role("heading", name="Map of positional encodings").wait_for()


def test_the_first_page_leads_to_answers_and_finds_encodings(watched):
    page = watched.open("")
    assert page.locator("main h1").inner_text() == "Positional encodings"
    page.locator("summary", has_text="What does ALiBi do").click()
    assert page.get_by_role("link", name="Distance").last.is_visible()
    page.get_by_role("searchbox").fill("sinusoids")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Map of positional encodings").wait_for()
    assert page.locator(".cards code", has_text="sinusoidal").count()


SEARCHES = {
    "2306.15595": "interpolate",
    "positional interpolation": "interpolate",
    "sinusoids": "sinusoidal",
    "linear bias": "alibi",
    "Press 2021": "alibi",
}


def test_the_map_finds_numbers_and_plain_words(watched):
    page = watched.open("map")
    search = page.get_by_role("searchbox")
    for words, name in SEARCHES.items():
        search.fill(words)
        found = page.locator(".cards code").all_inner_texts()
        assert name in found
        assert len(found) < 20
    search.fill("flash-attention window_size")
    page.get_by_role("link", name="a table of libraries").click()
    assert page.locator("h1").inner_text().startswith("What does sliding_window=W mean")
    search = watched.open("map").get_by_role("searchbox")
    search.fill("no such words")
    assert page.locator(".cards li").count() == 0


def test_the_menu_of_a_phone_opens_and_closes(watched):
    page = watched.open("map")
    page.set_viewport_size(PHONE)
    assert page.locator("header").bounding_box()["height"] < 60
    assert not page.locator("#menu").is_visible()
    page.get_by_role("button", name="Pages").click()
    page.locator("#menu").get_by_role("link", name="Distance").click()
    page.get_by_role("heading", name="Against distance").wait_for()
    assert not page.locator("#menu").is_visible()


def test_distance_offers_every_encoding(watched, atlas):
    page = watched.open("distance?shown=fire")
    assert page.locator("main tbody th").all_inner_texts() == ["fire()"]
    page.get_by_role("checkbox", name="window", exact=True).check()
    row = page.locator("main tbody tr", has_text="window(size=32)").inner_text()
    assert row.split("\t")[3] == "not seen"
    offered = set(page.locator("fieldset label").all_text_contents())
    text = (atlas / "data" / "landscapes.js").read_text()
    drawn = {each["name"] for each in json.loads(text[text.index("{") : text.rindex(")")])["pictures"]}
    assert drawn <= offered


def test_claims_are_folded_by_study_and_one_is_shown_when_asked_for(watched):
    page = watched.open("measured")
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    assert page.locator(".claim:visible").count() == 0
    claim = page.locator(".claim").first.get_attribute("id").removeprefix("claim-")
    page = watched.open(f"measured?claim={claim}")
    assert page.locator(f"#claim-{claim}").is_visible()


def test_a_page_that_fails_says_so(watched):
    page = watched.open("map")
    page.evaluate(
        "atlas.page({name: 'failing', title: 'Failing', render: () => { throw new Error('no such thing'); }})"
    )
    page.evaluate("location.hash = '#/failing'")
    page.get_by_text("no such thing").wait_for()
    assert [each for each in watched.troubles if "no such thing" not in each] == []
    watched.troubles.clear()


def test_a_factor_of_one_leaves_longrope_as_it_is(watched):
    page = watched.open("scaling?factor=1&fast=2&slow=16")
    row = page.locator("main tbody tr", has_text="LongRoPE").inner_text().split("\t")
    assert row[1:4] == ["1", "1", "64"]
    fast, slow = (page.get_by_role("slider", name=name) for name in ("YaRN keeps", "and divides"))
    assert (fast.input_value(), slow.input_value()) == ("17", "16")
    fast.fill("5")
    assert slow.input_value() == "4"
    slow.fill("9")
    assert fast.input_value() == "10"


def test_a_number_of_several_tables_leads_to_each(watched):
    page = watched.open("measured")
    several = page.locator(".claim li", has_text=", from ").first
    links = {each.get_attribute("href") for each in several.locator("a").all()}
    assert len(links) > 1
    for link in links:
        page.goto(f"{page.url.split('#')[0]}{link}")
        page.get_by_role("heading", name="Records of").wait_for()


def test_a_card_links_pages_that_know_it(watched):
    page = watched.open("card?name=p_rope")
    page.get_by_role("link", name="Its wavelengths").click()
    page.get_by_text("p_rope(base").first.wait_for()
    page = watched.open("card?name=clipped")
    assert page.get_by_role("link", name="Its logits").count() == 0


def test_a_tap_reads_a_logit(watched):
    page = watched.open("landscape")
    picture = page.locator("main canvas").first
    box = picture.bounding_box()
    side = (box["width"] - 56) / 128  # of a cell, beside a margin of 50 pixels on the left, 6 on the right and 4 above
    place = {"clientX": box["x"] + 50 + 12.5 * side, "clientY": box["y"] + 4 + 115.5 * side}
    picture.dispatch_event("pointerdown", place)
    page.get_by_text("Query at 115, key at 12, 103 apart").wait_for()


def test_three_questions_are_answered_by_a_few_clicks(watched):
    """The clicks that docs/atlas.md recommends to a newcomer."""
    page = watched.open("map")
    menu, said = page.get_by_role("navigation", name="Pages"), page.locator("main [aria-live]").first

    menu.get_by_role("link", name="Distance").click()  # what does ALiBi do to far tokens?
    page.get_by_role("checkbox", name="rope", exact=True).uncheck()
    row = page.locator("main tbody tr")
    assert row.count() == 1
    assert row.inner_text().split("\t")[3].startswith("-512 ")
    page.get_by_role("slider", name="head", exact=True).fill("8")
    assert row.inner_text().split("\t")[3].startswith("-4 (×0.018")

    menu.get_by_role("link", name="Clocks").click()  # why does RoPE fail past its length, and what does YaRN change?
    said.get_by_text("23 of 32 pairs turn fully, 9 turn in part").wait_for()
    said.get_by_text("9 pairs meet angles that training did not show").wait_for()
    page.get_by_role("combobox", name="scaling").select_option("yarn")
    said.get_by_text("no pair meets an angle that training did not show").wait_for()

    menu.get_by_role("link", name="Which one?").click()  # which encoding for images of several sizes?
    page.get_by_role("link", name="Images of several sizes").click()
    page.locator("main a[aria-current=true]", has_text="Images of several sizes").wait_for()  # alone
    answer = page.get_by_role("article")
    answer.get_by_text(" leads: ").wait_for()
    answer.locator('a[href^="#/record"]').first.click()
    page.get_by_role("heading", name="Records of").wait_for()
