//! The page of a node in a real browser: it shows what the command line says, in both sizes and colours, follows what
//! happens, and says so when the node is gone.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::payload::{Place, RecordId, record};
use rangeway_compat_tests::wire::{self, Connection, PRODUCE_VERSION};
use rangeway_compat_tests::{browser, skip};
use serde_json::Value;

/// The page asks every second; on a busy machine that takes longer.
const FOLLOWS_MAX: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 16;

/// What the page shows of ranges: the map's cells, the lineage and the table's rows.
const SHOWN: &str = "
  const all = (css, pick) => [...document.querySelectorAll(css)].map(pick);
  return {
    cells: all('#map .cell', (e) => [+e.dataset.range, +e.dataset.first, +e.dataset.last, e.dataset.state]),
    kin: all('#lineage .kin', (e) => [+e.dataset.range, e.dataset.state, e.dataset.parents, e.dataset.children])
      .sort((a, b) => a[0] - b[0]),
    rows: all('#ranges tbody tr', (e) => [+e.dataset.range, +e.dataset.bytes, +e.dataset.segments]),
    operations: document.querySelectorAll('#operations tbody tr').length,
    topics: all('#topics a', (e) => e.dataset.topic),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    widths: all('#map .cell', (e) => e.getBoundingClientRect().width / (e.dataset.last - e.dataset.first + 1)),
    trouble: document.getElementById('trouble').hidden ? '' : document.getElementById('trouble').textContent,
  };";

#[test]
fn the_page_shows_in_a_browser_what_the_command_line_says() {
    if !browser::is_installed() {
        return skip::announce("page", "no chromium, or no chromedriver, on the path", browser::INSTALL);
    }
    let mut broker = Broker::start(Kind::Rangeway, &[]).unwrap();
    rangeway(&broker, &["topics", "create", "orders", "--partitions", "16"]);
    rangeway(&broker, &["topics", "create", "a.topic-of_every.kind", "--partitions", "3"]);
    append(&broker);
    for (range, at) in [("0", "6"), ("1", "2"), ("2", "12")] {
        rangeway(&broker, &["ranges", "split", "orders", "--range", range, "--at", at]);
    }
    append(&broker);

    let page = browser::Browser::start().unwrap();
    for (name, width, height, scheme) in [
        ("wide-light", 1280, 800, "light"),
        ("narrow-dark", 390, 844, "dark"),
        ("narrow-light", 390, 844, "light"),
        ("wide-dark", 1280, 800, "dark"),
    ] {
        page.look_like(width, height, scheme).unwrap();
        page.open(&format!("http://{}/#/topics/orders", broker.http_address())).unwrap();
        let shown = agrees(&page, &broker, 3);
        assert_eq!(shown["topics"], serde_json::json!(["a.topic-of_every.kind", "orders"]));
        assert_eq!(shown["overflow"], 0, "{name}: nothing is wider than the window");
        let widths: Vec<f64> =
            shown["widths"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
        let narrowest = widths.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            widths.iter().all(|width| *width < narrowest * 1.3),
            "{name}: as wide as their partitions: {widths:?}"
        );
        page.picture(name).unwrap();
    }
    rangeway(&broker, &["ranges", "merge", "orders", "--ranges", "4,5"]);
    let shown = agrees(&page, &broker, 4);
    assert_eq!(shown["trouble"], "");
    assert_eq!(page.console().unwrap(), Vec::<String>::new(), "no script failed, nothing was forbidden");

    page.run("location.hash = '#/topics/' + encodeURIComponent('<img src=x onerror=alert(1)>')").unwrap();
    let said = until(&page, |shown| shown["trouble"] != "");
    assert_eq!(said["trouble"], "There is no topic '<img src=x onerror=alert(1)>'.", "a name is text");
    assert_eq!(page.run("return document.images.length").unwrap(), 0);

    page.run("location.hash = '#/topics/orders'").unwrap();
    agrees(&page, &broker, 4);
    broker.kill().unwrap();
    let gone = until(&page, |shown| shown["trouble"] != "");
    assert!(gone["trouble"].as_str().unwrap().contains("cannot be reached"), "{gone}");
    page.picture("gone").unwrap();
    broker.restart().unwrap();
    agrees(&page, &broker, 4);
    drop(page);
    broker.stop().unwrap();
}

/// Waits until the page shows what `ranges list --json` says, and so many operations. What is listed is asked for anew with each look: a node
/// that has just started still writes.
fn agrees(page: &browser::Browser, broker: &Broker, operations: u64) -> Value {
    let ids = |value: &Value| {
        let ids = value.as_array().unwrap().iter().map(Value::to_string);
        ids.collect::<Vec<_>>().join(",")
    };
    until(page, |shown| {
        let listed = rangeway(broker, &["ranges", "list", "orders", "--json"]);
        let list: Value = serde_json::from_str(&listed).unwrap();
        let ranges = list.as_array().unwrap();
        let active = || ranges.iter().filter(|r| r["state"] != "closed");
        let cells: Vec<Value> =
            active().map(|r| serde_json::json!([r["id"], r["first"], r["last"], r["state"]])).collect();
        let rows: Vec<Value> =
            active().map(|r| serde_json::json!([r["id"], r["bytes"], r["segments"]])).collect();
        let mut kin: Vec<Value> = ranges
            .iter()
            .map(|r| serde_json::json!([r["id"], r["state"], ids(&r["parents"]), ids(&r["children"])]))
            .collect();
        kin.sort_by_key(|row| row[0].as_u64());
        let found = serde_json::json!([shown["cells"], shown["rows"], shown["kin"], shown["operations"]]);
        found == serde_json::json!([cells, rows, kin, operations])
    })
}

/// Looks until it is as wanted; fails with what is shown instead.
fn until(page: &browser::Browser, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let shown = page.run(SHOWN).unwrap();
        if wanted(&shown) {
            return shown;
        }
        assert!(began.elapsed() < FOLLOWS_MAX, "the page shows {shown:#}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A record into every partition.
fn append(broker: &Broker) {
    let mut connection = Connection::open(broker.address(), Duration::from_secs(60)).unwrap();
    for partition in 0..PARTITIONS {
        let place = Place { topic: 0, partition };
        let mut records = [record(place, RecordId { producer: 0, counter: 0 }, 0)];
        let batch = wire::batch(&mut records, None).unwrap();
        let request = wire::produce_request(vec![("orders", partition, batch)], -1, 30_000);
        let answer = connection.call(&request, PRODUCE_VERSION).unwrap();
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
}

/// A command against the node; what it prints.
fn rangeway(broker: &Broker, arguments: &[&str]) -> String {
    let address = broker.http_address().to_string();
    let done = Command::new(broker.program()).args(arguments).args(["--server", &address]).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
