/** Elements made by hand: no text ever becomes markup. */

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Sets a text where it is another: setting it anew makes a screen reader say it again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Draws, and keeps the focused element where it is in the window when what stands above it grows or shrinks. */
export function holdingFocus(draw) {
  const focused = document.activeElement;
  const held = focused.closest("figure") ?? focused; // within a picture it moves by itself
  const { top, bottom } = held.getBoundingClientRect();
  draw();
  const isSeen = focused !== document.body && bottom > 0 && top < innerHeight;
  const moved = isSeen && document.activeElement === focused ? held.getBoundingClientRect().top - top : 0;
  if (moved) scrollBy(0, moved);
}

/** An HTML element; attributes that are null or false are left out. */
export const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** A sentence with commands between backticks. */
export const coded = (sentence) => sentence.split("`").map((part, index) => (index % 2 ? html("code", null, part) : part));

/** An SVG element. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A drawing as wide as its container, in pixels, so that its text keeps its size on narrow screens. */
export function drawing(container, height, label) {
  const width = Math.max(240, container.clientWidth);
  const view = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
  const canvas = svg("svg", view);
  container.replaceChildren(canvas);
  return { canvas, width };
}
