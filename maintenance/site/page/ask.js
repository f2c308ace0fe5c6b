// Commands of the program, asked of the worker. Only the newest question of each kind is answered.
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
const newest = new Map();
let last = 0;
let busy = false;
const queue = [];

export const started = { onProgress: () => {}, onFailure: () => {} };

worker.onmessage = ({ data }) => {
  if (data.progress !== undefined) return started.onProgress(data.progress);
  if (data.failed) return started.onFailure(data.failed);
  const resolve = waiting.get(data.id);
  waiting.delete(data.id);
  busy = false;
  next();
  resolve(data);
};
worker.onerror = (event) => started.onFailure(event.message || "the worker could not start");

function next() {
  if (busy || !queue.length) return;
  const asked = queue.shift();
  if (newest.get(asked.kind) !== asked.id) {
    waiting.get(asked.id)(null);
    waiting.delete(asked.id);
    return next();
  }
  busy = true;
  worker.postMessage({ id: asked.id, words: asked.words, files: asked.files });
}

// Resolves to { code, out, err }, or to null where a newer question of the same kind has replaced this one.
export function ask(kind, words, files = {}) {
  const id = ++last;
  newest.set(kind, id);
  return new Promise((resolve) => {
    waiting.set(id, resolve);
    queue.push({ kind, id, words, files });
    next();
  });
}
