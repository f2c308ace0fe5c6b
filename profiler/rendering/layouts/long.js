"use strict";
// Lists of so many trials that they are shown in parts: searching and sorting take all rows, and show the first of them.
// Listens before page.js, and leaves everything else to it.
(() => {
  const AT_ONCE = 1000;
  const collator = new Intl.Collator(undefined, { numeric: true });
  const lists = JSON.parse(document.getElementById("long").textContent);
  const states = {};
  for (const [id, rows] of Object.entries(lists)) {
    states[id] = { rows, found: rows, shown: document.getElementById(id).tBodies[0].rows.length };
  }

  function rowOf([number, kind, fields]) {
    const row = document.createElement("tr");
    row.className = kind;
    row.dataset.trial = number;
    fields.forEach(([text, sort], place) => {
      const cell = row.insertCell();
      if (sort !== undefined) cell.dataset.sort = sort;
      if (place) {
        cell.textContent = text;
        return;
      }
      const button = document.createElement("button");
      button.type = "button";
      button.className = "open";
      button.setAttribute("aria-expanded", "false");
      button.textContent = text;
      cell.append(button);
    });
    return row;
  }

  function show(id) {
    const { rows, found, shown } = states[id];
    const left = Math.max(found.length - shown, 0);
    document.getElementById(id).tBodies[0].replaceChildren(...found.slice(0, shown).map(rowOf));
    const rest = document.querySelector(`[data-rest="${id}"]`);
    rest.style.display = left ? "" : "none";
    rest.querySelector(".note").textContent =
      `The first ${shown} of ${found.length} are shown; searching and sorting take all of them.`;
    document.querySelector(`[data-count="${id}"]`).textContent =
      found.length === rows.length ? `${rows.length} trials` : `${found.length} of ${rows.length} trials`;
  }

  function filter(id, wanted) {
    const state = states[id];
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    state.found = words.length ? state.rows.filter(([, , fields]) => {
      const text = fields.map(([shown]) => shown).join("").toLowerCase();
      return words.every((word) => text.includes(word));
    }) : state.rows;
    state.shown = AT_ONCE;
    show(id);
  }

  function order(one, other) {
    // Unknown values come last.
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    if (typeof one === "number") return one - other;
    return one === other ? 0 : collator.compare(one, other);
  }

  function sort(header) {
    const table = header.closest("table");
    const state = states[table.id];
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = ([, , fields]) => fields[header.cellIndex][1] ?? fields[header.cellIndex][0];
    state.rows = [...state.rows].sort((one, other) => (ascending ? 1 : -1) * order(key(one), key(other)));
    filter(table.id, document.querySelector(`[data-filter="${table.id}"]`).value);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const header = button.closest("thead") && button.closest("th");
    if (button.classList.contains("more")) {
      states[button.dataset.table].shown += AT_ONCE;
      show(button.dataset.table);
    } else if (header && states[header.closest("table").id]) {
      sort(header);
    } else return;
    event.stopPropagation();
  }, true);
  document.addEventListener("input", (event) => {
    const id = event.target.dataset.filter;
    if (!states[id]) return;
    filter(id, event.target.value);
    event.stopPropagation();
  }, true);
})();
