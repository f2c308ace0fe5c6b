// "Why did it run out?": a log, or a memory snapshot.
import { ask } from "./ask.js";
import { at, showFaults } from "./dom.js";
import { takeFiles } from "./form.js";
import { bytesOfFiles, words } from "./state.js";

const MOST_SNAPSHOT_BYTES = 50 * 2 ** 20;

export function makeOom() {
  at("explain").addEventListener("click", async () => {
    const job = at("with-job").checked ? words() : [];
    const files = { ...(at("with-job").checked ? bytesOfFiles() : {}), "pasted.log": new TextEncoder().encode(at("log").value) };
    show(await ask("oom", ["advise", "oom=pasted.log", ...job, "confirm=false"], files));
  });
  takeFiles(at("drop-snapshot"), at("snapshot"), async ([file]) => {
    if (!file) return;
    if (file.size > MOST_SNAPSHOT_BYTES) {
      return show({ out: "", err: `${file.name}: has more than 50 MB; python -m profiler.replay reads it in a shell.` });
    }
    const content = new Uint8Array(await file.arrayBuffer());
    show(await ask("oom", ["replay", "snapshot.pickle"], { "snapshot.pickle": content }));
  });
}

function show(found) {
  if (found === null) return;
  at("oom-text").textContent = found.out;
  showFaults("oom-faults", found.err.trim());
}
