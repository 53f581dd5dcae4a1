"""The web page with the keyboard, a screen reader, a phone, or a slow connection, in Chromium."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from browser import SMALL, Visitor, browser, require_browser, served

require_browser()
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A browser, and the address of a server."""
    downloads, folder = map(tmp_path_factory.mktemp, ("downloads", "server"))
    with served(folder, *SMALL) as address, browser(downloads) as driver:
        yield driver, address


@pytest.fixture
def visitor(page):
    return Visitor(*page)


def test_a_run_with_the_keyboard_alone(visitor):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        ActionChains(visitor.driver).send_keys(*keys).perform()

    def tab_to(selector, most=60):
        for _ in range(most):
            press(Keys.TAB)
            if visitor.driver.execute_script(
                "return document.activeElement.matches(arguments[0])", selector
            ):
                outline = visitor.driver.execute_script(
                    "const s = getComputedStyle(document.activeElement);"
                    "return s.outlineStyle !== 'none' || s.boxShadow !== 'none'"
                )
                assert outline, f"{selector} does not show that it has the focus"
                return
        raise AssertionError(f"{selector} cannot be reached")

    visitor.click("#denoise-plan")
    tab_to("#denoise-kind input[value=salt-and-pepper]")
    press(Keys.SPACE)
    visitor.wait(lambda: visitor.chosen("#denoise-kind") == "Salt & pepper", "the other noise")
    tab_to("#denoise-start")
    press(Keys.ENTER)
    visitor.wait(lambda: "iteration" in visitor.text("#denoise-status"), "iterations")
    tab_to("#denoise-stop")
    press(Keys.ENTER)
    visitor.wait(lambda: "Stopped by you" in visitor.text("#denoise-status"), "the end")
    tab_to("#denoise-numbers summary")
    press(Keys.ENTER)
    assert "Relative gap" in visitor.text("#denoise-numbers")
    tab_to("#denoise-json")


def test_the_focus_is_neither_below_the_buttons_nor_behind_a_list_left_open(page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver, address = page
    size = {"width": 1280, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        Visitor(driver, address)
        driver.execute_script("document.querySelector('button[role=tab]').focus()")
        reached = None
        for _ in range(40):
            ActionChains(driver).send_keys(Keys.TAB).perform()
            time.sleep(0.4)  # lists open and close slowly
            reached, on_top, lists = driver.execute_script(
                "const e = document.activeElement, r = e.getBoundingClientRect();"
                "const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);"
                "const lists = [...document.querySelectorAll('.option-list')].filter("
                "  l => l.getClientRects().length && !l.closest('.block').contains(e));"
                "return [e.outerHTML, e.contains(top) || top?.contains(e), lists.length]"
            )
            assert on_top, reached
            assert not lists, reached
            if "denoise-start" in reached:
                return
        raise AssertionError(f"Start cannot be reached, only {reached}")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE is not the path of axe.min.js")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_screen_reader_finds_its_way(theme, visitor):
    """By the rules of axe-core, an npm package."""
    driver = visitor.driver
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.set_script_timeout(60)
    visitor.open()
    visitor.run("denoise")
    visitor.click("#denoise-numbers summary")
    driver.execute_script(Path(os.environ["AXE_CORE"]).read_text())
    for tab in ("Denoise", "Inpaint", "CT", "About"):
        visitor.tab(tab)
        time.sleep(0.5)
        found = driver.execute_async_script(
            "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(r => done("
            "r.violations.map(v => [v.impact, v.id, v.nodes[0].html])))"
        )
        assert not [v for v in found if v[0] in ("serious", "critical")], tab
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_cut_off_on_a_phone(visitor):
    driver = visitor.driver
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        visitor.open()
        visitor.run("denoise")
        visitor.click("#denoise-numbers summary")
        for tab in ("Denoise", "Inpaint", "CT", "About"):
            visitor.tab(tab)
            time.sleep(0.5)
            wide = driver.execute_script(
                "return [...document.querySelectorAll('.tabitem *')].filter(e => e.offsetParent &&"
                " e.getBoundingClientRect().right > 391)"
                ".map(e => e.outerHTML.slice(0, 120))"
            )
            assert not wide, tab
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 390, tab
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
