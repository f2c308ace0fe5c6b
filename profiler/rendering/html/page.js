"use strict";
// Sorting, filtering and details. All content is inserted as text, never as markup.
(() => {
  const details = JSON.parse(document.getElementById("details").textContent);

  function element(name, text, parent, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  }

  function pairs(title, rows, parent) {
    if (!rows.length) return;
    const part = element("div", undefined, parent);
    element("h4", title, part);
    const table = element("table", undefined, part);
    for (const [name, value] of rows) {
      const row = element("tr", undefined, table);
      element("th", name, row).scope = "row";
      element("td", value, row);
    }
  }

  function detailsOf(trial) {
    const box = element("div", undefined, null, "details");
    pairs("Peak of each phase, GiB allocated", trial.phases, box);
    pairs("What the peak is made of, GiB", trial.categories, box);
    pairs("Total memory, GiB", trial.metrics, box);
    pairs("GPU utilisation, mean of each phase", trial.busy, box);
    if (trial.largest.length) {
      const part = element("div", undefined, box, "whole");
      element("h4", "The largest tensors at the peak", part);
      const list = element("ol", undefined, part);
      for (const text of trial.largest) element("li", text, list);
    }
    if (trial.message) {
      const part = element("div", undefined, box, "whole");
      element("h4", "Message", part);
      element("pre", trial.message, part);
    }
    const part = element("div", undefined, box, "whole");
    element("h4", "Run this trial again", part);
    element("pre", trial.command, part);
    return box;
  }

  function toggle(button) {
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) {
      row.nextElementSibling.remove();
      return;
    }
    const opened = element("tr", undefined, null, "opened");
    const cell = element("td", undefined, opened);
    cell.colSpan = row.cells.length;
    cell.append(detailsOf(details[Number(row.dataset.trial)]));
    row.after(opened);
  }

  function close(table) {
    for (const opened of table.querySelectorAll("tr.opened")) opened.remove();
    for (const button of table.querySelectorAll("button.open")) button.setAttribute("aria-expanded", "false");
  }

  function key(row, column) {
    const cell = row.cells[column];
    return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
  }

  function order(one, other) {
    // Unknown values come last.
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
  }

  function sort(header) {
    const table = header.closest("table");
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    close(table);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, header.cellIndex), row]);
    rows.sort((one, other) => (ascending ? 1 : -1) * order(one[0], other[0]));
    body.append(...rows.map(([, row]) => row));
  }

  function filter(input) {
    const table = document.getElementById(input.dataset.filter);
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    close(table);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    const total = table.tBodies[0].rows.length;
    const count = document.querySelector(`[data-count="${input.dataset.filter}"]`);
    count.textContent = shown === total ? `${total} trials` : `${shown} of ${total} trials`;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("open")) toggle(button);
    else if (button.closest("thead")) sort(button.closest("th"));
  });
  document.addEventListener("input", (event) => {
    if (event.target.dataset.filter) filter(event.target);
  });
})();
