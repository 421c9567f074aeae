// model.js — a widget's model on a page without Python. In JupyterLab Python shares the model; here `answer` stands for
// Python: answer(message) is called after the widget has sent a message.
export function modelOf(state, answer) {
  const listeners = [];
  return {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      for (const [event, listener] of listeners) if (event === `change:${name}`) listener();
    },
    save_changes() {},
    on: (event, listener) => listeners.push([event, listener]),
    off(event, listener) {
      const at = listeners.findIndex((one) => one[0] === event && one[1] === listener);
      if (at >= 0) listeners.splice(at, 1);
    },
    send: (message) => setTimeout(() => answer(message)),
  };
}
