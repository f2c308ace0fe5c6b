// Python in a thread of its own: the page stays responsive while a command runs.
import { loadPyodide } from "./pyodide.mjs";

const STEPS = ["runtime", "program", "ready"];
let python, run;

function step(name) {
  postMessage({ progress: Math.round((100 * (STEPS.indexOf(name) + 1)) / STEPS.length) });
}

async function start() {
  const [core, source] = await Promise.all([
    fetch("core.zip").then((found) => found.arrayBuffer()),
    fetch("run.py").then((found) => found.text()),
  ]);
  python = await loadPyodide({ indexURL: new URL(".", import.meta.url).href, env: { HOME: "/home/web", COLUMNS: "80" } });
  step("runtime");
  python.unpackArchive(core, "zip", { extractDir: "/core" });
  python.runPython("import sys; sys.path.insert(0, '/core')");
  python.runPython(source);
  run = python.globals.get("run");
  step("program");
  run(JSON.stringify(["estimate", "model=qwen2.5-0.5b", "format=json"])); // imports what every answer needs
  step("ready");
}

const started = start().catch((error) => postMessage({ failed: String(error) }));

onmessage = async ({ data }) => {
  await started;
  if (!run) return;
  const files = python.toPy(new Map(Object.entries(data.files)));
  try {
    postMessage({ id: data.id, ...JSON.parse(run(JSON.stringify(data.words), files)) });
  } catch (error) {
    postMessage({ id: data.id, code: 70, out: "", err: String(error) });
  } finally {
    files.destroy();
  }
};
