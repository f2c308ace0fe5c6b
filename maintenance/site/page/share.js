// The command that gives the shown answer in a shell, and the link of the page.
import { at, copy } from "./dom.js";
import { isWhole, link, quoted, state } from "./state.js";

export function showCommand(words) {
  at("command").textContent = ["grpo-vram", ...words.map(quoted)].join(" ");
  at("share").hidden = false;
}

export function makeShare() {
  const left = () =>
    (isWhole() ? "" : " without the files and the log, which are too large for it") +
    (state.snapshot ? "; the snapshot has to be dropped there again" : "");
  at("copy-yaml").addEventListener("click", () => copy(at("yaml").textContent, "Copied the configuration."));
  at("copy-command").addEventListener("click", () => copy(at("command").textContent, "Copied the command."));
  at("copy-link").addEventListener("click", () => copy(location.href.split("#")[0] + link(), `Copied the link${left()}.`));
}
