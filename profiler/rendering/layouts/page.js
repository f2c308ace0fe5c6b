"use strict";
// Sorting, filtering and details. All content is inserted as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

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

  function named(names, values) {
    // 0 stands for "unknown here".
    return values.map((value, place) => [names[place], value]).filter(([, value]) => value !== 0);
  }

  function whole(title, name, parent) {
    const part = element("div", undefined, parent, "whole");
    element("h4", title, part);
    return element(name, undefined, part);
  }

  function detailsOf([phases, categories, metrics, busy, largest, message, command]) {
    const box = element("div", undefined, null, "details");
    pairs("Peak of each phase, GiB allocated", named(data.phases, phases), box);
    pairs("What the peak is made of, GiB", named(data.categories, categories), box);
    pairs("Total memory, GiB", named(data.metrics, metrics), box);
    pairs("GPU utilisation, mean of each phase", named(data.phases, busy), box);
    if (largest.length) {
      const list = whole("The largest tensors at the peak", "ol", box);
      for (const text of largest) element("li", text, list);
    }
    if (message) whole("Message", "pre", box).textContent = message;
    const again = whole("Run this trial again", "div", box);
    again.className = "command";
    element("pre", command, again);
    const button = element("button", "Copy", again, "copy");
    button.type = "button";
    button.setAttribute("aria-label", "Copy the command of this trial");
    return box;
  }

  // Pages from disk may not have the clipboard's interface; a selection can be copied everywhere.
  async function copy(button) {
    const command = button.parentElement.querySelector("pre");
    let copied = false;
    try {
      await navigator.clipboard.writeText(command.textContent);
      copied = true;
    } catch {
      const selection = getSelection();
      selection.selectAllChildren(command);
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    document.getElementById("said").textContent = copied ? "The command is copied." : "The command is selected.";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  function rowOf([number, kind, fields]) {
    const row = element("tr", undefined, null, kind);
    row.dataset.trial = number;
    fields.forEach(([text, sort], place) => {
      const cell = element("td", place ? text : undefined, row);
      if (sort !== undefined) cell.dataset.sort = sort;
      if (place) return;
      const button = element("button", text, cell, "open");
      button.type = "button";
      button.setAttribute("aria-expanded", "false");
    });
    return row;
  }

  // Adds the rows of a long list that were not in the page from the start.
  function complete(table) {
    const rest = data.rows[table.id] || [];
    if (!rest.length) return;
    table.tBodies[0].append(...rest.map(rowOf));
    data.rows[table.id] = [];
    document.querySelector(`[data-rest="${table.id}"]`).remove();
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
    cell.append(detailsOf(data.trials[Number(row.dataset.trial)]));
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
    complete(table);
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
    complete(table);
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
    if (button.classList.contains("copy")) copy(button);
    else if (button.classList.contains("open")) toggle(button);
    else if (button.classList.contains("rest")) complete(document.getElementById(button.dataset.table));
    else if (button.closest("thead")) sort(button.closest("th"));
  });
  document.addEventListener("input", (event) => {
    if (event.target.dataset.filter) filter(event.target);
  });
})();
