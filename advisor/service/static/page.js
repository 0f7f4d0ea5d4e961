// Puts each new rendering in place of the old one, and sends what a person commands. What is shown
// comes rendered from the sidecar or is set as text; nothing is stored, the token least of all.
"use strict";
(() => {
  const POLL_MS = 2000, MAX_POLL_MS = 10000, ANSWER_MS = 6000, COMMAND_MS = 10000;
  const at = (id) => document.getElementById(id);
  const live = at("live"), dialog = at("command"), outcome = at("command-outcome");

  // Looking ------------------------------------------------------------------------------------

  let timer = 0, waitMs = POLL_MS, asking = null, token = "";
  let last = new Date();

  async function refresh() {
    clearTimeout(timer);
    asking?.abort();
    const own = asking = new AbortController();
    const late = setTimeout(() => own.abort(), ANSWER_MS);
    try {
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const options = { headers, cache: "no-store", signal: own.signal };
      const answer = await fetch(`page/live${location.search}`, options);
      if (!answer.ok) throw new Error(await problemOf(answer));
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (own !== asking) return;
      if (!fresh) throw new Error("something else answers in its place");
      show(fresh);
    } catch (error) {
      if (own === asking) failed(error);
    } finally {
      clearTimeout(late);
      if (own === asking) {
        asking = null;
        if (!document.hidden) timer = setTimeout(refresh, waitMs);
      }
    }
  }

  function show(fresh) {
    // A sidecar of another version answers: this script may not be its own.
    if (fresh.dataset.assets !== live.dataset.assets && !dialog.open) return location.reload();
    const focused = live.contains(document.activeElement);
    morph(live, fresh);
    if (focused && document.activeElement === document.body) at("policies-title").focus();
    last = new Date();
    waitMs = POLL_MS;
    standing(false, `Live: renewed every ${POLL_MS / 1000} s.`);
  }

  function failed(error) {
    const isTold = error.constructor === Error;
    const why = isTold ? error.message : "the sidecar does not answer";
    waitMs = Math.min(waitMs * 2, MAX_POLL_MS);
    standing(true, `Stale since ${clock(last)}: ${why}. Shown is what was then.`);
  }

  function standing(isStale, text) {
    document.documentElement.classList.toggle("stale", isStale);
    document.title = (isStale ? "STALE · " : "") + live.dataset.title;
    put(at("freshness"), text);
  }

  // Make `shown` like `fresh`, keeping focus, selection, scroll places and what is unfolded.
  function morph(shown, fresh) {
    for (const { name } of [...shown.attributes])
      if (name !== "open" && !fresh.hasAttribute(name)) shown.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
    const wanted = [...fresh.childNodes];
    const names = new Set(wanted.map((node) => node.id).filter(Boolean));
    for (const child of [...shown.children])
      if (child.id && !names.has(child.id)) child.remove();
    wanted.forEach((node, place) => {
      let there = shown.childNodes[place];
      const own = node.id && [...shown.children].find((child) => child.id === node.id);
      while (own && there !== own && !names.has(there.id)) { // gone from before it
        there.remove();
        there = shown.childNodes[place];
      }
      if (!there) shown.append(node);
      else if (there.nodeName === node.nodeName && (there.id ?? "") === (node.id ?? "")) {
        if (node.nodeType === Node.ELEMENT_NODE) morph(there, node);
        else if (there.data !== node.data) there.data = node.data;
      } else if (there.id && names.has(there.id)) shown.insertBefore(node, there);
      else there.replaceWith(node);
    });
    while (shown.childNodes.length > wanted.length) shown.lastChild.remove();
  }

  const clock = (moment) => `${moment.toISOString().slice(11, 19)} UTC`;

  function news(text) {
    put(at("said"), text && `${clock(new Date())}: ${text}`);
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text; // what stays is not read again
  }

  async function problemOf(answer) {
    try {
      return (await answer.json()).detail;
    } catch {
      return `it answers ${answer.status}`;
    }
  }

  // Commanding ---------------------------------------------------------------------------------

  let asked = {}, isChecked = false, isBusy = false, sent = { text: "", key: "" };
  const isShown = (id) => !at(id).hidden;
  const value = (id) => at(id).value.trim();

  function open(button) {
    asked = { ...button.dataset };
    news("");
    isChecked = !asked.policy; // the kill switch and a token have nothing to check first
    for (const id of ["command-reason", "command-word", "command-token"]) at(id).value = "";
    at("command-forced").checked = false;
    at("force-row").hidden = true;
    const modes = (asked.modes ?? "").split(" ").filter(Boolean);
    at("command-mode").replaceChildren(...modes.map((mode) => new Option(mode)));
    at("mode-row").hidden = modes.length < 2;
    at("reason-row").hidden = at("actor-row").hidden = asked.do === "token";
    at("token-row").hidden = Boolean(token);
    put(at("command-title"), asked.title);
    say("", "");
    paint();
    dialog.showModal();
    [...dialog.querySelectorAll("select, input")].find((field) => field.checkVisibility())?.focus();
  }

  function paint() {
    const acting = (asked.acting ?? "").split(" ");
    const lets = asked.do === "set" ? acting.includes(at("command-mode").value) : true;
    put(at("command-says"), asked.says);
    at("word-row").hidden = !(isChecked && asked.word && lets);
    put(at("command-wanted"), asked.word ?? "");
    const named = { kill: "Kill: all policies off", revive: "Revive", token: "Keep it" }[asked.do];
    at("command-go").classList.toggle("danger", asked.do === "kill");
    put(at("command-go"), isChecked ? named ?? "Do it" : "Check what it would do");
  }

  function say(style, text, points = []) {
    outcome.className = style;
    outcome.replaceChildren();
    if (text) outcome.append(Object.assign(document.createElement("p"), { textContent: text }));
    if (!points.length) return;
    const list = document.createElement("ul");
    for (const point of points)
      list.append(Object.assign(document.createElement("li"), { textContent: point }));
    outcome.append(list);
  }

  // What is missing before anything is sent; the field gets the focus.
  function isWhole() {
    const faults = [
      ["reason-row", "command-reason", !value("command-reason"), "Say why."],
      ["token-row", "command-token", !/^[\x21-\x7e]+$/.test(value("command-token")),
        "Give the token: printable characters without spaces."],
      ["word-row", "command-word", value("command-word") !== asked.word,
        `Type ${asked.word} to confirm.`],
    ];
    const found = faults.find(([row, , isWrong]) => isShown(row) && isWrong);
    for (const [, id] of faults) at(id).toggleAttribute("aria-invalid", id === found?.[1]);
    if (!found) return true;
    say("bad", found[3]);
    at(found[1]).focus();
    return false;
  }

  async function submitted() {
    if (isBusy || !isWhole()) return;
    if (isShown("token-row")) keep(value("command-token"));
    if (asked.do === "token") return kept();
    isBusy = true;
    say("", "Asking…");
    try {
      const wasDry = !isChecked;
      const answer = await command(wasDry);
      if (answer.status === 401) keep("");
      if (answer.status === 200) wasDry ? checked(answer) : done(answer);
      else await refused(answer);
    } finally {
      isBusy = false;
      paint();
    }
  }

  async function command(isDry) {
    const body = { reason: value("command-reason"), actor: value("command-actor") };
    const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
    let path = `v1/${asked.do}`, method = "POST";
    if (asked.policy) {
      path = `v1/policies/${encodeURIComponent(asked.policy)}`;
      Object.assign(body, JSON.parse(asked.scope));
      Object.assign(body, { dry_run: isDry, forced: at("command-forced").checked });
      headers["if-match"] = `"${asked.revision}"`;
      if (asked.do === "set") [method, body.mode] = ["PUT", at("command-mode").value];
      else path += `/${asked.do}`;
    }
    const text = JSON.stringify(body);
    // The same command sent again is done once; another one is another.
    const told = [method, path, headers["if-match"], text].join(" ");
    if (told !== sent.text) sent = { text: told, key: newKey() };
    headers["idempotency-key"] = sent.key;
    try {
      const signal = AbortSignal.timeout(COMMAND_MS);
      const answer = await fetch(path, { method, headers, body: text, signal });
      const document = await answer.json().catch(() => ({}));
      const [tag, retry] = ["etag", "retry-after"].map((name) => answer.headers.get(name));
      return { status: answer.status, document, tag, retry };
    } catch {
      return { status: 0, document: {} };
    }
  }

  function newKey() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  const place = ({ mode, overlay }) => mode + (overlay === "none" ? "" : ` (${overlay})`);

  function checked({ document: { before, after } }) {
    isChecked = true;
    const [from, to] = [place(before), place(after)];
    const move = from === to ? `stay in ${to}` : `go from ${from} to ${to}`;
    say("good", `It can be done: ${after.policy} would ${move}.`);
    paint();
    const next = isShown("word-row") ? "command-word" : "command-go";
    at(next).focus();
  }

  function done({ document: answer }) {
    sent = { text: "", key: "" };
    if (asked.do === "revive" && answer.held_by.length) return say("bad", answer.says);
    const told = answer.after
      ? `${answer.after.policy}: ${place(answer.before)} → ${place(answer.after)}.`
      : `${answer.says}.`;
    dialog.close();
    news(told);
    refresh();
  }

  async function refused({ status, document: { detail = "", lacks = [] }, tag, retry }) {
    const again = isChecked ? " The same button asks again, and it is done once." : "";
    if (status === 412) {
      await refresh();
      const buttons = [...live.querySelectorAll("button[data-policy]")].map((one) => one.dataset);
      const now = buttons.find((one) => one.policy === asked.policy && one.scope === asked.scope);
      asked.says = now?.says ?? "It is no longer as it was.";
      asked.revision = tag?.replaceAll('"', "") ?? now?.revision ?? asked.revision;
      isChecked = false;
      return say("bad", "Somebody changed it meanwhile. Look at where it is now, then check again.");
    }
    if (status === 401) at("token-row").hidden = false;
    if (status === 409) isChecked = !asked.policy;
    if (status === 409 && asked.forcible) at("force-row").hidden = false;
    const words = {
      0: `The sidecar does not answer: whether it was done is not known.${again}`,
      401: "The token is wrong. Give another one.",
      403: `Your token may not: ${detail}.`,
      409: lacks.length ? "Refused. It lacks:" : `Refused: ${detail}.`,
      422: `Not understood: ${detail}.`,
      429: `Too many commands from here: wait ${retry ?? "a few"} s, then ask again.`,
      503: `Not now: ${detail}.${again}`,
      504: `Too busy to say: ${detail}.${again}`,
    };
    say("bad", words[status] ?? `Refused (${status}): ${detail}.`, lacks.map((one) => one.says));
    if (status === 401) at("command-token").focus();
  }

  // In the memory of this page, and nowhere else.
  function keep(secret) {
    token = secret;
    at("command-token").value = "";
    at("token-row").hidden = Boolean(token);
    put(at("token-button"), token ? "Forget the token" : "Give a token");
  }

  async function kept() {
    dialog.close();
    await refresh();
    const isTaken = live.dataset.reads === "yes";
    news(isTaken ? "The token is kept until this page is closed." : "The token was not taken.");
    if (!isTaken) keep("");
  }

  // Wiring -------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="?target="]');
    if (link && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      history.replaceState(null, "", link.getAttribute("href"));
      refresh();
    }
    const button = event.target.closest("button[data-do]");
    if (button) open(button);
  });
  at("command-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submitted();
  });
  at("command-form").addEventListener("change", (event) => {
    if (!["command-mode", "command-forced"].includes(event.target.id)) return;
    isChecked = false; // what was checked is no longer what is asked
    say("", "");
    paint();
  });
  at("command-cancel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    at("command-token").value = "";
    if (document.activeElement === document.body) at("policies-title").focus();
  });
  at("token-button").addEventListener("click", () => {
    if (token) {
      keep("");
      news("The token is forgotten.");
      refresh();
      return;
    }
    const says = "It goes with every question and command until it is forgotten.";
    open({ id: "token-button", dataset: { do: "token", title: "Give a token", says } });
  });
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  addEventListener("pagehide", () => keep(""));
  at("token-button").hidden = false;
  standing(false, `Live: renewed every ${POLL_MS / 1000} s.`);
  refresh();
})();
