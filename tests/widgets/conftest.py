"""A bare page in headless Chromium that runs a widget's JavaScript with a stand-in for anywidget's model."""

import base64

import pytest

from tests.helpers.large_values import computed

THEMES = {
    "light": {
        "--jp-ui-font-color1": "rgba(0,0,0,0.87)",
        "--jp-layout-color1": "#ffffff",
        "--jp-layout-color2": "#eeeeee",
    },
    "dark": {
        "--jp-ui-font-color1": "rgba(255,255,255,0.87)",
        "--jp-layout-color1": "#111111",
        "--jp-layout-color2": "#424242",
    },
}
NOT_JSON = ("data", "layout")
# In the place of what the page showed before, whose clean-up ends its timers and listeners: no page is
# loaded. Tests import from the script, too, at `scriptUrl`.
START = """async ([traits, data, script, css, theme, style]) => {
    window.cleanup?.();
    window.cleanup = undefined;
    document.activeElement?.blur();
    const body = document.createElement("body");
    body.dataset.jpThemeName = theme;
    body.style.cssText = `${style}; margin: 0; padding: 10px`;
    body.innerHTML = '<div id="out"></div>';
    document.body.replaceWith(body);
    const sheet = document.createElement("style");
    sheet.textContent = css;
    document.head.replaceChildren(sheet);
    window.scrollTo(0, 0);
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const state = { ...traits, data: new DataView(bytes.buffer) };
    const listeners = [];
    window.saves = 0;
    window.sent = [];
    window.model = {
        get: (name) => state[name],
        set: (name, value) => {
            if (state[name] === value) return;
            state[name] = value;
            for (const [event, call] of [...listeners]) if (event === `change:${name}`) call();
        },
        save_changes: () => { window.saves += 1; },
        send: (message) => window.sent.push(message),
        on: (event, call) => listeners.push([event, call]),
        off: (event, call) => {
            const at = listeners.findIndex((l) => l[0] === event && l[1] === call);
            if (at >= 0) listeners.splice(at, 1);  // else splice would take the last one
        },
        listeners,
    };
    window.scriptUrl = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const module = (await import(window.scriptUrl)).default;
    window.cleanup = await module.render({ model: window.model, el: document.getElementById("out") });
    return "drawn";
}"""


@pytest.fixture(scope="session")
def widget_pages(browser):
    """Pages that stay open from test to test: a new one takes Chromium longer than most of these tests."""
    pages = []
    yield pages
    for page in pages:
        page.close()


@pytest.fixture
def open_widget(browser, widget_pages):
    """open_widget(widget, width=900, theme="light") -> page with the widget drawn. An error on it fails the test."""
    opened, errors = 0, []

    def note(message):
        if message.type == "error":
            errors.append(message.text)

    def note_error(error):
        errors.append(str(error))

    def open_page(widget, *, width=900, theme="light"):
        nonlocal opened
        if opened == len(widget_pages):
            widget_pages.append(browser.new_page())
            widget_pages[opened].set_content("<!doctype html>")
        page = widget_pages[opened]
        opened += 1
        page.on("pageerror", note_error)
        page.on("console", note)
        if page.viewport_size != {"width": width, "height": 900}:
            page.set_viewport_size({"width": width, "height": 900})
        style = "; ".join(f"{name}: {value}" for name, value in THEMES[theme].items())
        style += "; background: var(--jp-layout-color1)"
        names = [name for name in widget.traits(sync=True) if not name.startswith("_") and name not in NOT_JSON]
        traits = {name: getattr(widget, name) for name in names}
        data = base64.b64encode(getattr(widget, "data", b"")).decode()
        computed(page, START, [traits, data, widget._esm, widget._css, theme, style])
        return page

    yield open_page
    for page in widget_pages[:opened]:
        page.remove_listener("pageerror", note_error)
        page.remove_listener("console", note)
    assert not errors, errors
