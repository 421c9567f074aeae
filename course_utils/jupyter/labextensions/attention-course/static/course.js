// course.js — what JupyterLab has no setting for: CUDA's colours in .cu and .cuh files, in cells with %%puzzle and in
// Python's strings with a kernel, and pictures that follow the theme. An extension as a bundler would make it, but small enough to be written by hand:
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

  // A string with a kernel, between its quotes. Python's parser is loaded with the first cell, and CUDA's then, too.
  async function colourStrings(languages) {
    const { parseMixed } = await shared("@lezer/common");
    const { LanguageSupport } = await shared("@codemirror/language");
    const inStrings = (parser) => parseMixed((node, input) => {
      if (node.name !== "String") return null;
      const text = input.read(node.from, node.to);
      if (!text.includes("__global__")) return null;
      const [begin] = /^\w*("""|'''|"|')/.exec(text);
      const quotes = begin.replace(/^\w*/, "");
      const end = text.length > begin.length && text.endsWith(quotes) ? node.to - quotes.length : node.to; // or not typed yet
      return { parser, overlay: [{ from: node.from + begin.length, to: end }] };
    });
    for (const name of ["Python", "ipython"]) {
      const language = languages.findByName(name);
      const load = language.load.bind(language);
      language.load = async () => {
        const [python, cuda] = await Promise.all([load(), languages.findByName("C++").load()]);
        return new LanguageSupport(python.language.configure({ wrap: inStrings(cuda.language.parser) }), python.support);
      };
    }
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
      activate: async (_, languages, notebooks) => {
        addCuda(languages);
        await colourStrings(languages);
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
