// Elements. Texts are always set as text: a file or a log can hold anything.
export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) found.addEventListener(event, handler);
    else if (name in found && typeof value !== "string") found[name] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

export function element(tag, attributes, text = "") {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.textContent = text;
  return found;
}

// Width of a drawing in a place that is shown already, so that its labels have the size of text.
export const widthOf = (place) => Math.min(720, place.clientWidth || 720);

export const GIB = 2 ** 30;
export const gib = (bytes) => (bytes / GIB >= 0.1 || bytes === 0 ? (bytes / GIB).toFixed(1) : (bytes / GIB).toPrecision(2));

export function showFaults(id, text) {
  at(id).textContent = text;
  at(id).hidden = !text;
}

export async function copy(text, said) {
  await navigator.clipboard.writeText(text);
  at("copied").textContent = said;
}
