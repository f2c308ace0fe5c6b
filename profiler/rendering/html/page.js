"use strict";
// Sorting, filtering and fold-outs. Everything shown is set as text, never as markup.
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

  function foldOut(detail) {
    const box = element("div", undefined, null, "fold-out");
    pairs("Peak of each phase, GiB allocated", detail.phases, box);
    pairs("What the peak is made of, GiB", detail.categories, box);
    pairs("Rulers, GiB", detail.rulers, box);
    pairs("GPU at work, mean of each phase", detail.busy, box);
    if (detail.largest.length) {
      const part = element("div", undefined, box, "whole");
      element("h4", "The largest tensors at the peak", part);
      const list = element("ol", undefined, part);
      for (const text of detail.largest) element("li", text, list);
    }
    if (detail.message) {
      const part = element("div", undefined, box, "whole");
      element("h4", "What it said", part);
      element("pre", detail.message, part);
    }
    const part = element("div", undefined, box, "whole");
    element("h4", "Run this trial again", part);
    element("pre", detail.command, part);
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
    const fold = element("tr", undefined, null, "fold");
    const cell = element("td", undefined, fold);
    cell.colSpan = row.cells.length;
    cell.append(foldOut(details[Number(row.dataset.trial)]));
    row.after(fold);
  }

  function close(table) {
    for (const fold of table.querySelectorAll("tr.fold")) fold.remove();
    for (const button of table.querySelectorAll("button.open")) button.setAttribute("aria-expanded", "false");
  }

  function key(row, column) {
    const cell = row.cells[column];
    return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
  }

  function order(one, other) {
    // What is not known comes last.
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
