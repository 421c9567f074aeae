// The widgets of the course ask as in JupyterLab whether the theme is light: the switch of the site answers them.
"use strict";

const answer = () => document.body.setAttribute("data-jp-theme-light", document.documentElement.dataset.theme !== "dark");
new MutationObserver(answer).observe(document.documentElement, { attributeFilter: ["data-theme"] });
answer();
