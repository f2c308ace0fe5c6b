// What the user has chosen: it is the link of the page, and the words of the command.
const MOST_IN_LINK = 20000;
const ofOom = () => ({ log: "", withJob: false, snapshot: "", whatIf: { gpu: "", conf: "" } }); // a snapshot: its name
const fresh = () => ({ tab: "fit", keys: {}, more: "", files: {}, cards: [], ...ofOom() });
export const state = fresh();

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

// Forget the job and what is asked about a log or a snapshot.
export function reset() {
  Object.assign(state, { ...fresh(), tab: state.tab, cards: state.cards });
}

// A word as a shell takes it.
export function quoted(word) {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function bytesOfFiles() {
  return Object.fromEntries(Object.entries(state.files).map(([name, text]) => [name, new TextEncoder().encode(text)]));
}

// Whether the link has all of the state: long files and logs are left out.
export function isWhole() {
  return JSON.stringify([state.files, state.log]).length <= MOST_IN_LINK;
}

export function link() {
  const kept = isWhole() ? state : { ...state, files: {}, log: "" };
  return "#" + encodeURIComponent(JSON.stringify(kept));
}

export function readLink() {
  const read = fresh();
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    const strings = (value) =>
      Object.fromEntries(Object.entries(value ?? {}).filter(([, each]) => typeof each === "string"));
    if (["fit", "oom", "cost"].includes(given.tab)) read.tab = given.tab;
    read.keys = strings(given.keys);
    read.files = strings(given.files);
    if (typeof given.more === "string") read.more = given.more;
    if (typeof given.log === "string") read.log = given.log;
    read.withJob = given.withJob === true;
    if (typeof given.snapshot === "string") read.snapshot = given.snapshot;
    Object.assign(read.whatIf, strings(given.whatIf));
    if (Array.isArray(given.cards)) read.cards = given.cards.filter((each) => typeof each === "string").slice(0, 3);
  } catch {
    // A link that was cut is the page as it opens first.
  }
  Object.assign(state, read);
}
