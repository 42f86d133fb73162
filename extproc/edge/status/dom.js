// Small helpers that change the page only where a value has changed.

/** Create an element with attributes, and with children that are elements or text. */
export function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set an element's text; text never becomes markup. */
export function setText(target, value) {
  const text = String(value);
  if (target.textContent !== text) target.textContent = text;
}

/** Set or remove an attribute. */
export function setAttribute(target, name, value) {
  if (value === null || value === false) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Show a list of terms and values; a value of null leaves its term out. */
export function showFacts(list, facts) {
  const wanted = facts.filter(([, value]) => value !== null && value !== undefined);
  while (list.children.length > 2 * wanted.length) list.lastElementChild.remove();
  wanted.forEach(([term, value], index) => {
    if (list.children.length < 2 * index + 2) list.append(element("dt"), element("dd"));
    setText(list.children[2 * index], term);
    const shown = list.children[2 * index + 1];
    setText(shown, value);
    setAttribute(shown, "data-term", term);
  });
}

const ROWS_IN_A_FRAME = 50;

/**
 * A table whose rows are used again.
 *
 * Each column has a title, and a function that returns the text of a row, or fills its cell.
 * Many rows are filled in several frames, so that scrolling stays smooth.
 */
export class Table {
  constructor(name) {
    this.head = byId(`${name}-head`);
    this.body = byId(`${name}-rows`);
    this.titles = "";
    this.turn = 0;
  }

  show(columns, rows, prepare = () => {}) {
    this.setColumns(columns);
    const turn = ++this.turn;
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    const fill = (start) => {
      if (turn !== this.turn) return; // newer rows have come
      const end = Math.min(start + ROWS_IN_A_FRAME, rows.length);
      for (let index = start; index < end; index++) this.fill(columns, rows[index], index, prepare);
      if (end < rows.length) requestAnimationFrame(() => fill(end));
    };
    fill(0);
  }

  setColumns(columns) {
    const titles = columns.map((column) => column.title).join("|");
    if (titles === this.titles) return;
    this.titles = titles;
    this.body.replaceChildren();
    const cells = columns.map(({ title, number, about }) => {
      const cell = element("th", { scope: "col" }, title);
      if (number) cell.className = "number";
      if (about) cell.title = about;
      return cell;
    });
    this.head.replaceChildren(element("tr", {}, ...cells));
  }

  fill(columns, row, index, prepare) {
    let line = this.body.rows[index];
    if (!line) {
      line = this.body.insertRow();
      columns.forEach(({ number }, place) => {
        const cell = place ? element("td") : element("th", { scope: "row" });
        if (number) cell.className = "number";
        line.append(cell);
      });
    }
    prepare(line, row);
    columns.forEach((column, place) => {
      const cell = line.cells[place];
      const text = column.of(row, cell);
      if (text !== undefined) setText(cell, text);
    });
  }
}
