// The form of the job: fields of the catalogue, files, and other keys. A field that nobody touched is not given.
import { at, make, showFaults } from "./dom.js";
import { reset, state } from "./state.js";

// A slider that moves another key with it: trl wants the group to divide the batch.
const MOVES = { num_generations: "per_device_train_batch_size" };
const MOST_FILE_BYTES = 10 * 2 ** 20;
const controls = new Map();

export function makeForm(catalogue, changed) {
  for (const group of catalogue.groups) {
    const box = make("fieldset", {}, make("legend", {}, group.title));
    for (const key of group.keys) box.append(field(key, catalogue, changed));
    at("fields").append(box);
  }
  at("more").addEventListener("input", () => {
    state.more = at("more").value;
    changed();
  });
  at("reset").addEventListener("click", () => {
    reset();
    changed();
  });
  takeFiles(at("drop"), at("files"), async (files) => {
    const tooLarge = files.filter((file) => file.size > MOST_FILE_BYTES);
    showFaults("file-faults", tooLarge.map((file) => `${file.name}: has more than 10 MiB, and was not read.`).join("\n"));
    for (const file of files) if (!tooLarge.includes(file)) state.files[file.name] = await file.text();
    changed();
  });
}

export function takeFiles(place, input, take) {
  input.addEventListener("change", () => take([...input.files]).then(() => (input.value = "")));
  place.addEventListener("dragover", (event) => {
    event.preventDefault();
    place.classList.add("over");
  });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    take([...event.dataTransfer.files]);
  });
}

function field(key, catalogue, changed) {
  const id = `key-${key.name}`;
  const set = (value) => {
    if (value === "") delete state.keys[key.name];
    else state.keys[key.name] = value;
    changed();
  };
  let control;
  if (key.kind === "flag") {
    control = make("input", { type: "checkbox", id, on: { change: (event) => set(String(event.target.checked)) } });
  } else if (key.kind === "choice") {
    control = make("select", { id, on: { change: (event) => set(event.target.value) } });
    control.append(...key.words.map((word) => make("option", { value: word }, word)));
  } else {
    const type = key.kind === "count" || key.kind === "number" ? "number" : "text";
    control = make("input", { type, id, on: { change: (event) => set(event.target.value) } });
    if (type === "number") Object.assign(control, { min: key.minimum, step: key.kind === "count" ? 1 : "any" });
    if (key.name === "model") {
      control.setAttribute("list", "models");
      const names = make("datalist", { id: "models" });
      names.append(...catalogue.models.map((name) => make("option", { value: name })));
      at("fields").append(names);
    }
  }
  const row = make("div", { class: "field" }, make("label", { for: id, title: key.meaning }, key.name), control);
  let slider = null;
  if (key.slider) {
    const move = (event) => {
      if (MOVES[key.name]) state.keys[MOVES[key.name]] = event.target.value;
      set(event.target.value);
    };
    slider = make("input", { type: "range", "aria-label": `${key.name}, slider`, on: { input: move } });
    Object.assign(slider, { min: key.minimum, max: key.slider });
    row.append(slider);
  }
  controls.set(key.name, { key, control, slider, row });
  return row;
}

let answered = null;

// Show what was given, and of all other fields the value of the job that was answered last.
export function showForm(trial = null) {
  answered = trial ?? answered;
  for (const [name, { key, control, slider, row }] of controls) {
    const given = state.keys[name];
    const value = given ?? String(answered?.[name] ?? "");
    row.classList.toggle("given", given !== undefined);
    if (key.kind === "flag") control.checked = value === "true";
    else if (document.activeElement !== control || key.kind === "choice") {
      if (key.kind === "choice" && value && !key.words.includes(value)) control.append(make("option", { value }, value));
      control.value = value;
    }
    if (slider && document.activeElement !== slider) slider.value = value || key.minimum;
  }
  if (document.activeElement !== at("more")) at("more").value = state.more;
  at("dropped").replaceChildren(
    ...Object.keys(state.files).map((name) =>
      make("li", {}, name, make("button", { type: "button", "aria-label": `Remove ${name}`, on: { click: () => remove(name) } }, "×")),
    ),
  );
}

function remove(name) {
  delete state.files[name];
  document.dispatchEvent(new Event("job-changed"));
}
