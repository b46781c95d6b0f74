// Makes elements from plain data. All text is inserted as text: names of jobs and output of workers are not trusted.

// Make an element: `h("td", { class: "ranks", title: "..." }, "0-7")`.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// Make an element of a drawing.
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

// Set an attribute unless it has that value already; null and false remove it.
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const wanted = value === true ? "" : String(value);
    if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
  }
}

// Set the text of an element that holds nothing else. An unchanged text costs nothing: no layout, no screen reader.
export function setText(element, text) {
  const wanted = String(text);
  const node = element.firstChild;
  if (node === null) {
    if (wanted !== "") element.append(wanted);
  } else if (node.data !== wanted) {
    node.data = wanted;
  }
}

// Set a text of ours in which commands stand between backquotes.
export function setProse(element, text) {
  if (element.prose === text) return;
  element.prose = text;
  element.replaceChildren(...text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part)));
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Set a property of an element's style, since the policy allows no style in markup.
export function style(element, property, value) {
  if (element.style[property] !== value) element.style[property] = value;
}

// Make the children of `parent` one for each item, in their order. `make(item)` returns `{ element, update }`; a child
// with the same key is kept and updated, with its focus and its place in the scroll.
export function keep(parent, items, keyOf, make) {
  const known = parent.kept ?? new Map();
  const kept = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const part = known.get(key) ?? make(item);
    kept.set(key, part);
    part.update(item);
    if (part.element === place) place = place.nextSibling;
    else parent.insertBefore(part.element, place);
  }
  for (const [key, part] of known) if (!kept.has(key)) part.element.remove();
  parent.kept = kept;
}

// Mark a name that may be in any script, so that its direction does not spill over.
export function name(text = "") {
  return h("bdi", {}, text);
}

export function badge() {
  const word = h("span");
  const element = h("span", { class: "badge" }, h("i"), word);
  return {
    element,
    update(text, tone) {
      setText(word, text);
      set(element, "data-tone", tone);
    },
  };
}
