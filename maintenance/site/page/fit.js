// "Will it fit?": the verdict, the bars of the phases, the cards, and what to change.
import { ask } from "./ask.js";
import { at, gib, make, showFaults } from "./dom.js";
import { showForm } from "./form.js";
import { showCommand } from "./share.js";
import { bytesOfFiles, words } from "./state.js";

const IS_GOOD = "fits";

export async function showFit(catalogue) {
  const job = words();
  const files = bytesOfFiles();
  showCommand(["estimate", ...job]);
  const [found, text] = [ask("fit", ["estimate", ...job, "format=json"], files), ask("text", ["estimate", ...job], files)];
  const asJson = await found;
  if (asJson === null) return;
  if (asJson.code !== 0 || !asJson.out.startsWith("{")) return showNoAnswer(asJson);
  showFaults("faults", asJson.err.trim());
  const answer = JSON.parse(asJson.out);
  const isTrial = answer.phases && answer.trial;
  at("text-box").hidden = false; // has its place before its text, so that nothing moves
  for (const id of ["chart-of-phases", "cards-box"]) at(id).hidden = !isTrial;
  if (isTrial) {
    showForm(answer.trial);
    showBars(answer, catalogue); // first, so that they follow a slider
    showCards(answer);
  } else at("advice").hidden = true;
  const asText = await text;
  if (asText === null) return;
  at("text").textContent = asText.out;
  const card = answer.trial && answer.gpus?.find((each) => each.gpu === answer.trial.gpu);
  showVerdict(asText.out, card?.verdict);
  at("notes").replaceChildren(...(answer.notes ?? []).map((note) => make("p", { class: "small" }, note)));
  await showAdvice(job, files, card?.verdict);
}

function showNoAnswer(asJson) {
  showFaults("faults", asJson.err.trim());
  showVerdict("No answer: see below.", "");
  for (const id of ["chart-of-phases", "cards-box", "advice", "text-box"]) at(id).hidden = true;
  showForm();
}

function showVerdict(text, verdict) {
  at("verdict").textContent = text.split("\n\n")[0].replaceAll("\n", " ");
  at("verdict").className = "verdict " + (verdict === IS_GOOD ? "good" : verdict ? "bad" : "");
}

function showBars(answer, catalogue) {
  const card = answer.gpus.find((each) => each.gpu === answer.trial.gpu);
  const largest = Math.max(card?.memory_bytes ?? 0, ...answer.phases.map((phase) => phase.peak_allocated_bytes));
  const share = (bytes) => `${(100 * bytes) / largest}%`;
  const colours = Object.fromEntries(catalogue.categories.map((each) => [each.name, each]));
  const focused = document.activeElement?.dataset?.part;
  const bars = answer.phases.map((phase) => {
    const track = make("div", { class: "track" });
    for (const part of phase.categories) {
      const said = `${phase.phase}, ${colours[part.category].title}: ${gib(part.bytes)} GiB (${part.bytes.toLocaleString("en")} bytes). ${part.formula}`;
      const show = () => (at("detail").textContent = said);
      const button = make("button", {
        type: "button", class: "part", "aria-label": said, "data-part": `${phase.phase}.${part.category}`,
        on: { mouseenter: show, focus: show, click: show },
      });
      button.style.width = share(part.bytes);
      button.style.background = colours[part.category].colour;
      track.append(button);
    }
    if (card) {
      const line = make("div", { class: "card" });
      line.style.left = `min(${share(card.memory_bytes)}, calc(100% - 2px))`;
      track.append(line);
    }
    const isPeak = phase.phase === answer.peak_phase;
    return make(
      "div", { class: isPeak ? "bar peak" : "bar" },
      make("span", {}, phase.phase), track, make("span", { class: "number" }, gib(phase.peak_allocated_bytes)),
    );
  });
  at("phases").replaceChildren(...bars);
  if (focused) document.querySelector(`[data-part="${focused}"]`)?.focus();
  const seen = new Set(answer.phases.flatMap((phase) => phase.categories.map((part) => part.category)));
  const legend = catalogue.categories.filter((each) => seen.has(each.name)).map((each) => {
    const square = make("span", { "aria-hidden": "true" });
    square.style.background = each.colour;
    return make("li", {}, square, each.title);
  });
  if (card) legend.push(make("li", {}, `dashed line: ${gib(card.memory_bytes)} GiB of ${card.gpu}`));
  at("legend").replaceChildren(...legend);
}

function showCards(answer) {
  const rows = answer.gpus.map((card) =>
    make(
      "tr", {},
      make("th", { scope: "row" }, card.gpu), make("td", { class: "number" }, gib(card.memory_bytes)),
      make("td", { title: card.reason }, card.verdict), make("td", { class: "number" }, gib(card.needed_bytes)),
    ),
  );
  at("cards").querySelector("tbody").replaceChildren(...rows);
}

async function showAdvice(job, files, verdict) {
  at("advice").hidden = true;
  if (!verdict || verdict === IS_GOOD) return;
  const asked = [ask("advice-text", ["advise", ...job], files), ask("advice", ["advise", ...job, "format=json"], files)];
  const [asText, found] = [await asked[0], await asked[1]];
  if (asText === null || found === null || found.code !== 0 || !found.out.startsWith("{")) return;
  const advice = JSON.parse(found.out);
  at("advice-line").textContent = advice.fits
    ? "What hurts least first, each after those above it:"
    : `Not enough on this card.${advice.smallest_gpu ? ` With all changes it fits ${advice.smallest_gpu}.` : ""}`;
  at("steps").replaceChildren(
    ...advice.steps.map((step) =>
      make("li", {}, make("strong", {}, step.name), ` saves ${gib(step.saved_bytes)} GiB: ${step.costs}. `, make("code", {}, step.lines.join("; "))),
    ),
  );
  at("advice-text").textContent = asText.out;
  at("yaml").textContent = asText.out.slice(asText.out.indexOf("\n# ") + 1); // the file begins with a comment
  at("advice").hidden = false;
}
