// score.js — what a game remembers.

// What a game keeps in this browser, and nowhere else. Where nothing may be kept, it lasts as long as the page.
function keptHere(name, nothing) {
  const key = `attention-course-${name}`;
  let now = nothing;
  const write = (value) => {
    now = value;
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch { /* private windows may keep nothing */ }
  };
  try {
    now = { ...nothing, ...JSON.parse(localStorage.getItem(key)) };
  } catch { /* the same, or somebody has changed it by hand */ }
  const isNothing = () => JSON.stringify(now) === JSON.stringify(nothing);
  return { get: () => now, set: write, reset: () => write(nothing), isNothing };
}
