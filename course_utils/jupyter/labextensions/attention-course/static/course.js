// course.js — what JupyterLab has no setting for: CUDA's colours in .cu and .cuh files and in cells with %%puzzle, and
// pictures that follow the theme. An extension as a bundler would make it, but small enough to be written by hand:
// JupyterLab calls init() with its own modules, then get() for the module with the plugin.

(() => {
  const CUDA = "text/x-cuda";
  // An SVG in an <img> sees nothing of the page but this (course_utils/plots/look.py).
  const STYLE = `
    .jp-RenderedSVG { color-scheme: light; }
    [data-jp-theme-light="false"] .jp-RenderedSVG { color-scheme: dark; }`;
  let modules;

  async function shared(name) {
    const [version] = Object.values(modules[name]);
    return (await version.get())();
  }

  // CUDA is read as C++, its parent; the parser is loaded with the first file or cell that needs it.
  function addCuda(languages) {
    const load = () => languages.findByName("C++").load();
    languages.addLanguage({ name: "CUDA", mime: CUDA, extensions: ["cu", "cuh"], load });
  }

  // Cells with %%puzzle hold a kernel. JupyterLab gives each cell the kernel's language, again when the kernel starts.
  function colourPuzzles(panel) {
    const seen = new WeakSet();
    const colour = (cell) => {
      if (cell.sharedModel.getSource().startsWith("%%puzzle")) cell.mimeType = CUDA;
    };
    const all = () => {
      for (const cell of panel.content.model?.cells ?? []) {
        if (cell.type !== "code" || seen.has(cell)) continue;
        seen.add(cell);
        cell.mimeTypeChanged.connect(colour);
        cell.contentChanged.connect(colour);
        colour(cell);
      }
    };
    panel.context.ready.then(() => {
      all();
      panel.content.model.cells.changed.connect(all);
    });
  }

  async function plugin() {
    const { IEditorLanguageRegistry } = await shared("@jupyterlab/codemirror");
    const { INotebookTracker } = await shared("@jupyterlab/notebook");
    return {
      id: "attention-course:plugin",
      description: "CUDA in the editor, and pictures that follow the theme.",
      autoStart: true,
      requires: [IEditorLanguageRegistry],
      optional: [INotebookTracker],
      activate: (_, languages, notebooks) => {
        addCuda(languages);
        notebooks?.forEach(colourPuzzles);
        notebooks?.widgetAdded.connect((_, panel) => colourPuzzles(panel));
        document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
      },
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB ?? {};
  window._JUPYTERLAB["attention-course"] = {
    init: (scope) => { modules = scope; },
    get: async () => {
      const found = await plugin();
      return () => ({ __esModule: true, default: found });
    },
  };
})();
