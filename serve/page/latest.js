/** Requests for one purpose: one in flight at a time, and what was asked for last wins. */

export const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const stop = () => reject(new DOMException("stopped", "AbortError"));
    if (signal?.aborted) stop();
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), stop()), { once: true });
  });

export class Latest {
  #controller = null;
  #again = false;
  #startedMs = 0;
  #timer = 0;

  /**
   * @param ask does the work; gets an AbortSignal, and reads what is wanted when it begins.
   * @param failed takes its errors; if it returns true the work begins again.
   * @param patienceMs a request that is older is given up for a newer one; a younger one may end first, so that a
   *   dragged slider shows answers on its way.
   */
  constructor(ask, failed, patienceMs = Infinity) {
    Object.assign(this, { ask, failed, patienceMs });
  }

  get running() {
    return this.#controller !== null;
  }

  /** Whether something runs, or will once its while is over. */
  get pending() {
    return this.running || this.#timer !== 0;
  }

  /** Asks for what is wanted now, or in a while if nothing else comes in between. */
  poke(afterMs = 0) {
    this.#forget();
    if (afterMs) {
      this.#timer = setTimeout(() => this.poke(), afterMs);
      return;
    }
    if (!this.running) {
      this.#work();
      return;
    }
    this.#again = true;
    if (performance.now() - this.#startedMs > this.patienceMs) this.#controller.abort();
  }

  /** Gives up what is in flight. */
  stop() {
    this.#forget();
    this.#again = false;
    this.#controller?.abort();
  }

  #forget() {
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  async #work() {
    do {
      this.#again = false;
      this.#controller = new AbortController();
      this.#startedMs = performance.now();
      try {
        await this.ask(this.#controller.signal);
      } catch (error) {
        if (error.name !== "AbortError" && this.failed(error)) this.#again = true;
      }
    } while (this.#again);
    this.#controller = null;
  }
}
