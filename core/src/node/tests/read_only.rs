//! A start on a disk that others have filled to the last block: nothing can be written, and all that is stored is read, the ends
//! of logs and the state of machines too, as far as they are sure.

use super::*;
use crate::api::{EntryKind, OwnEntry, Purpose};
use crate::error::TopicError;
use crate::range::primary::Phase;
use crate::replicated::runtime_test::{Ask, Counters};
use crate::replicated::{ApiLog, Options, Partition, Unavailable};

/// A disk on which a start finds no room.
#[derive(Copy, Clone, Default)]
struct NoRoom {
    /// Nor does the control state.
    control: bool,
    /// What stands in extents cannot be written again.
    sealed: bool,
}

impl Faults for NoRoom {
    fn write(&self, _len: usize) -> Fault {
        if self.sealed { Fault::SyncFails } else { Fault::None }
    }
    fn allocate_fails(&self, _len: u64) -> bool {
        true
    }
    fn no_room_to_begin(&self) -> bool {
        true
    }
    fn no_room_for_control(&self) -> bool {
        self.control
    }
    fn available(&self) -> Option<u64> {
        Some(0)
    }
}

async fn start_without_room(dirs: &[&Path], without: NoRoom) -> Node {
    let mut options = options(dirs, &[]);
    for dir in dirs {
        options.faults.0.insert(dir.to_path_buf(), Arc::new(without));
    }
    let until = soon();
    loop {
        match Node::start(options.clone()).await {
            Ok(node) => return node,
            Err(error) if error.to_string().contains("in use") && Instant::now() < until => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn machine(node: &Node, id: TopicId) -> Partition<Counters> {
    let log = ApiLog::new(node.api(), TopicPartition { topic: id, partition: 1 }, Duration::from_secs(5));
    Partition::start(log, (), Options::default())
}

async fn internal(node: &Node) -> TopicId {
    let new = NewTopic {
        name: "__counters".into(),
        partitions: Some(3),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: true,
        validate_only: false,
    };
    node.api().create_topic(new).await.expect("a new topic").id
}

fn at(topic: TopicId) -> TopicPartition {
    TopicPartition { topic, partition: 0 }
}

async fn by_producer(node: &Node, id: TopicId) -> Appended {
    append(node, id, vec![batch(0, 1, Some((4, 0, 0)), 0, "no")]).await.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_room_serves_all_reads_refuses_writes_and_stops_at_once() {
    for (control, clean) in [(false, false), (true, false), (false, true), (true, true)] {
        let case = format!("control state without room {control}, stopped {clean}");
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
        let id = topic(&node, "t", 2, &[]).await;
        for n in 0..8 {
            topic(&node, &format!("u{n}"), 1, &[]).await;
        }
        for i in 0..10 {
            assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 100 + i, "x")]).await[0]), i);
        }
        let counters = internal(&node).await;
        let partition = machine(&node, counters);
        assert_eq!(partition.call(Ask::Add("a".into(), 5)).await, Ok(5));
        partition.stop().await;
        let before = node.api().offsets(at(id)).expect("led here");
        if clean {
            node.stop().await
        } else {
            node.crash().await
        }

        let node = start_without_room(&[dir.path()], NoRoom { control, sealed: false }).await;
        let blocked = node.api().blocked();
        let named =
            |line: &String| !line.contains("dead") && line.contains("start") && line.contains("again");
        assert!(blocked.len() == 2 && blocked.iter().all(named), "{case}: {blocked:?}");
        assert!(blocked[1].contains("and 9 more ranges"), "{case}: {blocked:?}");
        let offsets = node.api().offsets(at(id)).expect("the end is sure");
        assert_eq!((offsets.log_start, offsets.high_watermark), (0, before.high_watermark), "{case}");
        assert_eq!(read_all(&node, id, 0, 0).await.len(), 10, "{case}");
        let found = node.api().find_timestamp(at(id), 105).await.expect("read").expect("there");
        assert_eq!(BatchHead::parse(&found).expect("a batch").base_offset, 5);
        assert_eq!(node.api().find_timestamp(at(id), 1000).await, Ok(None), "{case}");
        let refused = by_producer(&node, id).await;
        assert!(matches!(refused, Appended::Err(AppendError::Storage(_))), "{case}: {refused:?}");
        let deleted = node.api().delete_records(at(id), Some(3)).await;
        assert!(matches!(deleted, Err(ReadFailure::Storage(_))), "{case}: {deleted:?}");
        let new = NewTopic { name: "new".into(), ..a_topic() };
        let made = node.api().create_topic(new).await.map(|topic| topic.id);
        assert!(matches!(made, Err(TopicError::NoDisk(_))), "{case}: {made:?}");

        let partition = machine(&node, counters);
        assert_eq!(partition.call(Ask::Get("a".into())).await, Ok(5), "{case}");
        let refused = partition.call(Ask::Add("a".into(), 1)).await;
        assert!(matches!(refused, Err(Unavailable::Storage(_))), "{case}: {refused:?}");
        assert_eq!((partition.call(Ask::Get("a".into())).await, partition.failing()), (Ok(5), None));
        partition.stop().await;
        // Several looks at each range: none goes on, none lets anything go.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(node.api().offsets(at(id)).expect("as before"), offsets, "{case}");
        let stopping = Instant::now();
        node.stop().await;
        assert!(stopping.elapsed() < Duration::from_secs(3), "{case}: {:?}", stopping.elapsed());

        let node = Node::start(options(&[dir.path()], &[])).await.expect("starts with room");
        assert_eq!(node.api().blocked(), Vec::<String>::new(), "{case}");
        let after = node.api().offsets(at(id)).expect("led here");
        assert_eq!(after.high_watermark, before.high_watermark, "{case}: as was told");
        assert_eq!(after.leader_epoch, before.leader_epoch + 1, "{case}");
        assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, 0, "y")]).await[0]), 10, "{case}");
        let partition = machine(&node, counters);
        assert_eq!(partition.call(Ask::Add("a".into(), 1)).await, Ok(6), "{case}");
        partition.stop().await;
        node.stop().await;
    }
}

fn a_topic() -> NewTopic {
    NewTopic {
        name: "t".into(),
        partitions: Some(1),
        replication_factor: None,
        configs: BTreeMap::new(),
        internal: false,
        validate_only: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_not_told_where_what_was_written_last_may_not_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    for i in 0..10 {
        append(&node, id, vec![batch(0, 1, None, i, "x")]).await;
    }
    node.crash().await;
    let end = leave_unproven(dir.path(), id).await;
    let node = start_without_room(&[dir.path()], NoRoom { sealed: true, control: false }).await;
    let told = node.api().offsets(at(id));
    assert!(matches!(&told, Err(ReadFailure::Storage(why)) if why.contains("not sure")), "{told:?}");
    assert!(read_at_least(&node, id).await >= 10);
    node.crash().await;
    let node = Node::start(options(&[dir.path()], &[])).await.expect("starts with room");
    assert_eq!(node.api().offsets(at(id)).expect("led here").high_watermark, end);
    node.stop().await;
}

/// A disk that writes nothing any more after a large group.
#[derive(Default)]
struct NothingAfter(AtomicBool);

impl Faults for NothingAfter {
    fn write(&self, len: usize) -> Fault {
        if self.0.load(Ordering::Acquire) {
            return Fault::WriteFails;
        }
        self.0.store(len > 8192, Ordering::Release);
        Fault::None
    }
}

/// Appends, and kills before a later group proves the last one.
async fn leave_unproven(dir: &Path, id: TopicId) -> i64 {
    let mut options = options(&[dir], &[]);
    options.faults.0.insert(dir.to_path_buf(), Arc::new(NothingAfter::default()));
    let node = Node::start(options).await.expect("starts");
    let outcome = append(&node, id, vec![batch(0, 1, None, 77, &"last".repeat(3000))]).await;
    node.crash().await;
    base(&outcome[0]) + 1
}

async fn read_at_least(node: &Node, id: TopicId) -> usize {
    let mut offset = 0;
    loop {
        let from = ReadFrom { topic: id, partition: 0, offset, max_bytes: 1, isolation: Default::default() };
        match &node.api().read(&[from], 1).await[0] {
            Ok(read) if read.next_offset > offset => offset = read.next_offset,
            _ => return usize::try_from(offset).expect("not negative"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_quorum_is_told_where_its_copies_agree_and_only_there() {
    for agree in [true, false] {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let paths: Vec<&Path> = dirs.iter().map(|d| d.path()).collect();
        let fault = Arc::new(FailingSync::default());
        let node = Node::start(with_fault(&paths, 1, &fault)).await.expect("starts");
        let id = topic(&node, "t", 1, &[("rangeway.drive", "quorum(2, write=1)")]).await;
        for i in 0..10 {
            if i == 5 && !agree {
                fault.0.store(true, Ordering::Release);
            }
            assert_eq!(base(&append(&node, id, vec![batch(0, 1, None, i, "x")]).await[0]), i);
        }
        // The copy that was not waited for.
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.crash().await;
        let node = start_without_room(&paths, NoRoom::default()).await;
        let told = node.api().offsets(at(id)).map(|offsets| offsets.high_watermark);
        match agree {
            true => assert_eq!(told, Ok(10)),
            false => assert!(
                matches!(&told, Err(ReadFailure::Storage(why)) if why.contains("copies differ")),
                "{told:?}"
            ),
        }
        node.crash().await;
        let node = Node::start(options(&paths, &[])).await.expect("starts with room");
        assert_eq!(node.api().offsets(at(id)).expect("led here").high_watermark, 10);
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_nothing_of_ranges_that_are_blocked() {
    let dir = tempfile::tempdir().expect("a directory");
    let fault = Arc::new(FailingSync::default());
    let node = Node::start(with_fault(&[dir.path()], 0, &fault)).await.expect("starts");
    let id = topic(&node, "t", 1, &[]).await;
    fault.0.store(true, Ordering::Release);
    let entry = OwnEntry { kind: EntryKind::Control, payload: vec![7; 10].into() };
    let soon = Instant::now() + Duration::from_secs(1);
    let lost = node.api().append_own(at(id), vec![entry], Purpose::Records, soon).await;
    assert!(lost.is_err(), "{lost:?}");
    let range = node.inner.topic(id).expect("there").ranges()[0].clone();
    assert!(matches!(range.phase(), Phase::Blocked(_)) && !range.is_idle(), "in flight for ever");
    drop(range);
    let stopping = Instant::now();
    node.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(3), "{:?}", stopping.elapsed());
}
