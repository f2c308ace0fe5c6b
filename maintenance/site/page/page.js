// The page: starts Python, and shows the panel of the link.
import { started } from "./ask.js";
import { makeCost, showCards, showCost } from "./cost.js";
import { at, showFaults } from "./dom.js";
import { showFit } from "./fit.js";
import { makeForm, showForm } from "./form.js";
import { makeOom, showOom } from "./oom.js";
import { makeShare } from "./share.js";
import { link, readLink, state } from "./state.js";

const TABS = ["fit", "oom", "cost"];
const catalogue = await (await fetch("catalogue.json")).json();
let isReady = false;

function showPanel() {
  for (const name of TABS) {
    const isShown = name === state.tab;
    at(`panel-${name}`).hidden = !isShown;
    at(`tab-${name}`).setAttribute("aria-selected", String(isShown));
    at(`tab-${name}`).tabIndex = isShown ? 0 : -1;
  }
  if (!isReady) return;
  if (state.tab === "fit") showFit(catalogue);
  if (state.tab === "oom") showOom();
  if (state.tab === "cost") showCost();
}

// A chosen panel is a step back in the history; a moved slider replaces the link of the step.
function changed({ isStep = false } = {}) {
  if (link() !== location.hash) history[isStep ? "pushState" : "replaceState"](null, "", link());
  showForm();
  showPanel();
}

function choose(name) {
  state.tab = name;
  changed({ isStep: true });
}

for (const [place, name] of TABS.entries()) {
  at(`tab-${name}`).addEventListener("click", () => choose(name));
  at(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(place + step + TABS.length) % TABS.length];
    choose(next);
    at(`tab-${next}`).focus();
  });
}

function showLink() {
  readLink();
  showForm();
  showCards();
  showPanel();
}

started.onProgress = (percent) => {
  at("progress").value = percent;
  if (percent < 100) return;
  isReady = true;
  at("loading").classList.add("ready");
  document.body.dataset.ready = "true";
  showPanel();
};
started.onFailure = (reason) => showFaults("faults", `Python did not start: ${reason}`);

at("version").textContent = catalogue.version;
makeForm(catalogue, changed);
makeShare();
makeOom(catalogue, changed);
makeCost(catalogue, changed);
addEventListener("popstate", showLink);
addEventListener("hashchange", showLink);
document.addEventListener("job-changed", () => changed());
showLink();
document.body.dataset.made = "true";
if ("serviceWorker" in navigator && location.protocol !== "file:") navigator.serviceWorker.register("offline.js");
