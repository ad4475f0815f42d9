//! Work that keeps a processor busy for long, such as decompressing what a client sent: beside the tasks of other
//! connections, and only so much of it at once as there are processors for tasks, which bounds its memory too.

use std::num::NonZero;
use std::sync::LazyLock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// As many as there are workers of the runtime; see `cli/serve.rs`.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Semaphore::new(processors.saturating_sub(1).max(1))
});

/// Waits until such work may begin; others may when the answer is dropped.
pub async fn turn() -> Option<SemaphorePermit<'static>> {
    // The semaphore is never closed.
    TURNS.acquire().await.ok()
}

/// Runs such work in its turn. Only the caller's own task stands still meanwhile.
pub async fn run<T>(work: impl FnOnce() -> T) -> T {
    let _turn = turn().await;
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        // There is no other thread that could go on with the rest.
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// With one worker, as on a machine of two processors.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_beside_it() {
        let (said, heard) = mpsc::channel();
        let heavy = tokio::spawn(async move {
            run(move || {
                tokio::spawn(async move { said.send(7) });
                heard.recv_timeout(Duration::from_secs(60))
            })
            .await
        });
        assert_eq!(heavy.await.unwrap(), Ok(7), "the other task had its turn while this one was in its own");
    }
}
