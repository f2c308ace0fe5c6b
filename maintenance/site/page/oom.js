// "Why did it run out?": a log, or a memory snapshot.
import { ask } from "./ask.js";
import { drawnCurves, tableOfLines } from "./curve.js";
import { at, gib, make, showFaults } from "./dom.js";
import { takeFiles } from "./form.js";
import { showCommand } from "./share.js";
import { bytesOfFiles, state, words } from "./state.js";

const MOST_SNAPSHOT_BYTES = 50 * 2 ** 20;
const WHAT_IF = { gpu: "what-if-gpu", conf: "what-if-conf" };
let dropped = { name: "", bytes: null }; // the file that was chosen last: no link can hold it
let refused = ""; // why a file was not read

export function makeOom(catalogue, changed) {
  at("explain").addEventListener("click", () => {
    refused = "";
    Object.assign(state, { log: at("log").value, withJob: at("with-job").checked, snapshot: "" });
    changed();
  });
  at(WHAT_IF.gpu).append(...catalogue.cards.map((card) => make("option", { value: card.name }, card.name)));
  for (const [key, id] of Object.entries(WHAT_IF)) {
    at(id).addEventListener("change", () => {
      state.whatIf[key] = at(id).value.trim();
      changed();
    });
  }
  takeFiles(at("drop-snapshot"), at("snapshot"), async ([file]) => {
    if (!file) return;
    showSnapshot(null);
    const isTooLarge = file.size > MOST_SNAPSHOT_BYTES;
    refused = isTooLarge ? `${file.name}: has more than 50 MB; python -m profiler.replay reads it in a shell.` : "";
    if (!isTooLarge) dropped = { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
    state.snapshot = isTooLarge ? "" : file.name;
    changed();
  });
}

// The answer of the log or the snapshot that was given last.
export async function showOom() {
  if (document.activeElement !== at("log")) at("log").value = state.log;
  at("with-job").checked = state.withJob;
  at("share").hidden = !state.snapshot && !state.log;
  const isHere = dropped.name === state.snapshot;
  at("snapshot-again").hidden = !state.snapshot || isHere;
  at("snapshot-again").textContent = `A link cannot hold the memory snapshot ${state.snapshot}: drop the file here again for the answer.`;
  if (!state.snapshot || !isHere) showSnapshot(null);
  if (refused) return show({ out: "", err: refused });
  if (state.snapshot) return replayed(isHere ? dropped.bytes : null);
  if (!state.log) return show({ out: "", err: "" });
  const job = state.withJob ? words() : [];
  const files = { ...(state.withJob ? bytesOfFiles() : {}), "train.log": new TextEncoder().encode(state.log) };
  const command = ["advise", "oom=train.log", ...job];
  showCommand(command);
  show(await ask("oom", [...command, "confirm=false"], files));
}

// The same command twice, for its table and for its numbers.
async function replayed(bytes) {
  const { gpu, conf } = state.whatIf;
  if (gpu && ![...at(WHAT_IF.gpu).options].some((each) => each.value === gpu)) at(WHAT_IF.gpu).append(make("option", { value: gpu }, gpu));
  for (const [key, id] of Object.entries(WHAT_IF)) if (document.activeElement !== at(id)) at(id).value = state.whatIf[key];
  const path = /^\w[^=]*$/.test(state.snapshot) ? state.snapshot : `./${state.snapshot}`; // neither an option nor a key
  const command = ["replay", path, ...(gpu ? [`gpu=${gpu}`] : []), ...(conf ? [`alloc_conf=${conf}`] : [])];
  const files = { [state.snapshot]: bytes };
  showCommand(command);
  if (bytes === null) return show({ out: "", err: "" });
  const numbers = await ask("oom", [...command, "format=json"], files);
  if (numbers === null) return;
  const [answer] = numbers.code === 0 ? JSON.parse(numbers.out).snapshots : [];
  if (answer) showSnapshot(answer);
  show(answer ? await ask("oom", command, files) : { out: "", err: numbers.err });
}

function showSnapshot(answer) {
  at("of-snapshot").hidden = !answer;
  if (!answer) return;
  const { recorded, what_if: tried, held } = answer;
  const curves = recorded ? [{ course: recorded, title: "Recorded, GiB" }] : [];
  if (tried) curves.push({ course: tried, title: `What if: ${said(tried)}, GiB` });
  at("curves").replaceChildren(...drawnCurves(at("curves"), curves));
  const when = held?.is_out_of_memory ? "when it ran out of memory first" : "at the peak";
  at("lines-title").textContent = held ? `Who holds most of the ${gib(held.allocated_bytes)} GiB that are allocated ${when}` : "";
  at("lines").replaceChildren(...(held ? [tableOfLines(held)] : []));
}

function said(tried) {
  return [tried.gpu, tried.alloc_conf].filter(Boolean).join(", ") || "PyTorch’s defaults";
}

function show(found) {
  if (found === null) return;
  at("oom-text").textContent = found.out;
  showFaults("oom-faults", found.err.trim());
}
