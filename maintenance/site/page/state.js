// What the user has chosen: it is the link of the page, and the words of the command.
const MOST_IN_LINK = 20000;
export const state = { tab: "fit", keys: {}, more: "", files: {}, cards: [] };

const FIRST = { model: "qwen2.5-7b", tuning: "lora" }; // the job that the page opens with

export function words() {
  const own = Object.entries(state.keys).map(([key, value]) => `${key}=${value}`);
  const isModel = (name) => name === "config.json";
  const files = Object.keys(state.files).map((name) => `${isModel(name) ? "model" : "config"}=${name}`);
  const more = state.more.match(/(?:[^\s"']|"[^"]*"|'[^']*')+/g) || [];
  const given = [...own, ...more].map((word) => word.split("=")[0]);
  const first = files.length ? [] : Object.entries(FIRST).filter(([key]) => !given.includes(key) && !given.includes("model"));
  return [...first.map((pair) => pair.join("=")), ...files, ...own, ...more.map((word) => (word.includes(" ") ? word.replace(/^'|'$/g, "") : word))];
}

// A word as a shell takes it.
export function quoted(word) {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function bytesOfFiles() {
  return Object.fromEntries(Object.entries(state.files).map(([name, text]) => [name, new TextEncoder().encode(text)]));
}

export function link() {
  const kept = { ...state };
  if (JSON.stringify(kept.files).length > MOST_IN_LINK) kept.files = {};
  return "#" + encodeURIComponent(JSON.stringify(kept));
}

export function readLink() {
  const fresh = { tab: "fit", keys: {}, more: "", files: {}, cards: [] };
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    const strings = (value) =>
      Object.fromEntries(Object.entries(value ?? {}).filter(([, each]) => typeof each === "string"));
    if (["fit", "oom", "cost"].includes(given.tab)) fresh.tab = given.tab;
    fresh.keys = strings(given.keys);
    fresh.files = strings(given.files);
    if (typeof given.more === "string") fresh.more = given.more;
    if (Array.isArray(given.cards)) fresh.cards = given.cards.filter((each) => typeof each === "string").slice(0, 3);
  } catch {
    // A link that was cut is the page as it opens first.
  }
  Object.assign(state, fresh);
}
