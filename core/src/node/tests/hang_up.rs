//! Who asks for a change may hang up in the middle of it: the change is made whole or not begun.

use super::*;
use std::pin::pin;

/// Polls a question some times, with a pause after each, then drops it: whoever asked has gone.
async fn hang_up_after<T>(polls: u32, question: impl Future<Output = T>) {
    let mut question = pin!(question);
    for _ in 0..polls {
        if futures_util::poll!(question.as_mut()).is_ready() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = soon();
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_for_is_done_whole_though_nobody_waits() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let api = node.api();
    for polls in 1..12 {
        let name = format!("t{polls}");
        let new = NewTopic {
            name: name.clone(),
            partitions: Some(1),
            replication_factor: None,
            configs: BTreeMap::new(),
            internal: false,
            validate_only: false,
        };
        hang_up_after(polls, api.create_topic(new)).await;
        until("a topic is served that nobody waits for", || {
            api.catalog().by_name.contains_key(name.as_str())
        })
        .await;
        let id = api.catalog().by_name[name.as_str()].id;
        assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "one")]).await[0]), 0);
        hang_up_after(polls, api.create_partitions(id, 2, false)).await;
        until("partitions are served", || api.catalog().by_id[&id].partitions == 2).await;
        assert_eq!(base(&append(&node, id, vec![batch(1, 1, None, 0, "one")]).await[0]), 0);
        let change = vec![("retention.ms".to_owned(), Some("7".to_owned()))];
        hang_up_after(polls, api.alter_topic_configs(id, change, false)).await;
        until("a config is in force", || api.catalog().by_id[&id].config.retention_ms == Some(7)).await;
        hang_up_after(polls, api.delete_topic(id)).await;
        until("a deleted topic is gone", || !api.catalog().by_id.contains_key(&id)).await;
        // The name is free again, and what it stands for is served.
        let again = topic(&node, &name, 1, &[]).await;
        assert_eq!(base(&append(&node, again, vec![batch(0, 1, None, 0, "one")]).await[0]), 0);
    }
    drop(api);
    node.stop().await;
}
