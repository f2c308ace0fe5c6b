// After the first visit the page works without a network.
const NAME = "grpo-vram";

addEventListener("install", (event) => {
  event.waitUntil(
    (async () => {
      const names = await (await fetch("offline.json", { cache: "no-cache" })).json();
      const cache = await caches.open(NAME);
      await cache.addAll(["./", ...names.filter((name) => name !== "offline.js")]);
      await skipWaiting();
    })(),
  );
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

// The network first, so that a new version is seen; the copy where there is none.
addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(
    (async () => {
      const cache = await caches.open(NAME);
      try {
        const found = await fetch(event.request);
        if (found.ok) await cache.put(event.request, found.clone());
        return found;
      } catch {
        return (await cache.match(event.request, { ignoreSearch: true })) ?? Response.error();
      }
    })(),
  );
});
