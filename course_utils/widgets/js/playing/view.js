// view.js — what a player in little keeps of what it shows, for the game (barrier.js) and the front page (front.js).

// The parts of a view that the panels of the player read, before anything is chosen.
const newView = (rec) => ({
  step: 0, warp: 0, lane: 0, cell: null, array: 0, colour: "value", figures: false, byBank: false, file: null, finding: -1,
  other: -1, writes: null, looksAtCell: false, followsArray: true, followsFile: true,
  type: typeOfFloats(rec),
});

// A recording out of `meta` and a part of the bytes of a model.
function unpacked(meta, data, from, size) {
  return loadRecording(meta, new DataView(data.buffer, data.byteOffset + from, size));
}
