// Comfort only: copy a table, hide a line. The page says everything without it.
"use strict";

const cells = (row) => [...row.cells].map((cell) => cell.innerText.trim().replace(/\s+/g, " "));

function tabbed(table) {
  return [...table.rows].map((row) => cells(row).join("\t")).join("\n");
}

function markdown(table) {
  const lines = [...table.rows].map((row) => `| ${cells(row).map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`);
  lines.splice(1, 0, `|${" --- |".repeat(table.rows[0].cells.length)}`);
  return lines.join("\n");
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

for (const box of document.querySelectorAll(".table")) {
  const bar = document.createElement("div");
  bar.className = "copy";
  box.append(bar);
  const table = box.querySelector("table");
  for (const [name, write] of [["copy for a spreadsheet", tabbed], ["copy as Markdown", markdown]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => copy(write(table), button));
    bar.append(button);
  }
}

for (const entry of document.querySelectorAll("[data-toggle]")) {
  const article = entry.closest("article");
  const index = entry.dataset.toggle;
  const flip = () => {
    const off = !entry.classList.contains("off");
    for (const other of article.querySelectorAll(`[data-toggle="${index}"]`)) {
      other.classList.toggle("off", off);
      other.setAttribute("aria-pressed", String(off));
    }
    for (const part of article.querySelectorAll(`[data-group="${index}"]`)) {
      part.classList.toggle("hidden", off);
    }
  };
  entry.classList.add("switch");
  entry.tabIndex = 0;
  entry.title = "hide or show";
  entry.setAttribute("role", "button");
  entry.addEventListener("click", flip);
  entry.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      flip();
    }
  });
}
