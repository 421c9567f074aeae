"""Questions of the chapters: kinds, sources, judging, and the widget that asks them."""
