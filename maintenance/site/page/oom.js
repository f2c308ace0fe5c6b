// "Why did it run out?": a log, or a memory snapshot.
import { ask } from "./ask.js";
import { drawnCurves, tableOfLines } from "./curve.js";
import { at, gib, make, showFaults } from "./dom.js";
import { takeFiles } from "./form.js";
import { showCommand } from "./share.js";
import { bytesOfFiles, state, words } from "./state.js";

const MOST_SNAPSHOT_BYTES = 50 * 2 ** 20;
let snapshot = null; // of the file that was chosen last

export function makeOom(catalogue, changed) {
  at("explain").addEventListener("click", () => {
    snapshot = null;
    Object.assign(state, { log: at("log").value, withJob: at("with-job").checked });
    changed();
  });
  at("what-if-gpu").append(...catalogue.cards.map((card) => make("option", { value: card.name }, card.name)));
  for (const id of ["what-if-gpu", "what-if-conf"]) at(id).addEventListener("change", replayed);
  takeFiles(at("drop-snapshot"), at("snapshot"), async ([file]) => {
    if (!file) return;
    showSnapshot(null);
    if (file.size > MOST_SNAPSHOT_BYTES) {
      return show({ out: "", err: `${file.name}: has more than 50 MB; python -m profiler.replay reads it in a shell.` });
    }
    snapshot = new Uint8Array(await file.arrayBuffer());
    await replayed();
  });
}

// The answer of the log or the snapshot that was given last.
export async function showOom() {
  if (document.activeElement !== at("log")) at("log").value = state.log;
  at("with-job").checked = state.withJob;
  at("share").hidden = snapshot === null && !state.log;
  if (snapshot !== null) return replayed();
  if (!state.log) return show({ out: "", err: "" });
  showSnapshot(null);
  const job = state.withJob ? words() : [];
  const files = { ...(state.withJob ? bytesOfFiles() : {}), "train.log": new TextEncoder().encode(state.log) };
  const command = ["advise", "oom=train.log", ...job];
  showCommand(command);
  show(await ask("oom", [...command, "confirm=false"], files));
}

// The same command twice, for its table and for its numbers.
async function replayed() {
  if (snapshot === null) return;
  const [gpu, conf] = [at("what-if-gpu").value, at("what-if-conf").value.trim()];
  const command = ["replay", "snapshot.pickle", ...(gpu ? [`gpu=${gpu}`] : []), ...(conf ? [`alloc_conf=${conf}`] : [])];
  const files = { "snapshot.pickle": snapshot };
  showCommand(command);
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
