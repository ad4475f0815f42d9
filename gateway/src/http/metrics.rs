//! Prometheus text over plain values. Owns the format, the names of the Kafka port's counters and the values of the
//! process itself; counters live where they are counted and are only read here, at each scrape.

use crate::metrics::{LATENCY_BUCKETS_US, Metrics};
use rangeway_core::api::Metric;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Something that is asked for its values at each scrape.
pub type Source = Box<dyn Fn() -> Vec<Family> + Send + Sync>;

/// All samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name without the `rangeway_` prefix.
    pub name: &'static str,
    /// One line.
    pub help: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Its values.
    pub samples: Vec<Sample>,
}

/// What the values of a family are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows only.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bound, with sum and count.
    Histogram,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Appended to the family's name; empty except in histograms.
    pub suffix: &'static str,
    /// Labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// All families in the text format 0.0.4.
pub fn render(families: &[Family]) -> String {
    let mut out = String::new();
    for Family { name, help, kind, samples } in families {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP rangeway_{name} {help}\n# TYPE rangeway_{name} {kind}");
        for Sample { suffix, labels, value } in samples {
            let _ = writeln!(out, "rangeway_{name}{suffix}{} {}", shown(labels), number(*value));
        }
    }
    out
}

fn shown(labels: &[(&'static str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        })
        .collect();
    format!("{{{}}}", pairs.join(","))
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// Core's values, one family per name, in order of names.
pub fn core(values: Vec<Metric>) -> Vec<Family> {
    let mut families: BTreeMap<&str, Family> = BTreeMap::new();
    for Metric { name, help, counter, labels, value } in values {
        let kind = if counter { Kind::Counter } else { Kind::Gauge };
        let family = families.entry(name).or_insert_with(|| Family { name, help, kind, samples: Vec::new() });
        family.samples.push(Sample { suffix: "", labels, value });
    }
    families.into_values().collect()
}

/// Counters of the Kafka port.
pub fn kafka(metrics: &Metrics) -> Vec<Family> {
    let mut requests = family("requests_total", "Requests by API.", Kind::Counter);
    let mut errors =
        family("request_failures_total", "Requests that ended their connection, by API.", Kind::Counter);
    let mut bytes_in = family("request_bytes_total", "Bytes of requests, by API.", Kind::Counter);
    let mut bytes_out = family("response_bytes_total", "Bytes of responses, by API.", Kind::Counter);
    let mut latency = family(
        "request_seconds",
        "Seconds from the last byte of a request to its reply being ready, by API.",
        Kind::Histogram,
    );
    for (row, api) in metrics.apis().filter(|(_, api)| api.requests.load(Relaxed) > 0) {
        let labels = vec![("api", row.name.to_owned())];
        for (family, counter) in [
            (&mut requests, &api.requests),
            (&mut errors, &api.errors),
            (&mut bytes_in, &api.bytes_in),
            (&mut bytes_out, &api.bytes_out),
        ] {
            family.samples.push(Sample { suffix: "", labels: labels.clone(), value: count(counter) });
        }
        histogram(&mut latency, &labels, &api.latency, count(&api.latency_us) / 1e6);
    }
    let mut closed = family("connections_closed_total", "Connections that ended, by reason.", Kind::Counter);
    for (reason, n) in metrics.closed() {
        closed.samples.push(Sample {
            suffix: "",
            labels: vec![("reason", reason.to_owned())],
            value: n as f64,
        });
    }
    let one = |name, help, kind, counter: &AtomicU64| single(name, help, kind, count(counter));
    vec![
        one("connections", "Connections of Kafka clients open now.", Kind::Gauge, &metrics.connections),
        one("connections_accepted_total", "Connections accepted.", Kind::Counter, &metrics.accepted),
        one(
            "accept_failures_total",
            "Times that a connection could not be accepted: no descriptors or memory left.",
            Kind::Counter,
            &metrics.accept_failures,
        ),
        closed,
        one("request_memory_bytes", "Bytes of requests held in memory.", Kind::Gauge, &metrics.request_bytes),
        one(
            "response_memory_bytes",
            "Bytes of records held in memory for responses that are not yet written.",
            Kind::Gauge,
            &metrics.response_bytes,
        ),
        requests,
        errors,
        bytes_in,
        bytes_out,
        latency,
    ]
}

/// Adds one label set's buckets, cumulative as the format wants them.
fn histogram(family: &mut Family, labels: &Labels, buckets: &[AtomicU64], sum_seconds: f64) {
    let bounds = LATENCY_BUCKETS_US.iter().map(|us| (*us as f64 / 1e6).to_string());
    let mut total = 0.0;
    for (bucket, bound) in buckets.iter().zip(bounds.chain(["+Inf".to_owned()])) {
        total += count(bucket);
        let mut labels = labels.clone();
        labels.push(("le", bound));
        family.samples.push(Sample { suffix: "_bucket", labels, value: total });
    }
    family.samples.push(Sample { suffix: "_sum", labels: labels.clone(), value: sum_seconds });
    family.samples.push(Sample { suffix: "_count", labels: labels.clone(), value: total });
}

fn count(counter: &AtomicU64) -> f64 {
    counter.load(Relaxed) as f64
}

fn family(name: &'static str, help: &'static str, kind: Kind) -> Family {
    Family { name, help, kind, samples: Vec::new() }
}

fn single(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Family {
    Family { name, help, kind, samples: vec![Sample { suffix: "", labels: Vec::new(), value }] }
}

/// Version, age, processor time, memory and open files of this process.
pub fn process(started: Instant) -> Vec<Family> {
    let mut build = family("build_info", "1, with the version as label.", Kind::Gauge);
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    build.samples.push(Sample { suffix: "", labels: version, value: 1.0 });
    let age = started.elapsed().as_secs_f64();
    let mut families =
        vec![build, single("process_uptime_seconds", "Seconds since the process started.", Kind::Gauge, age)];
    if let Some(seconds) = cpu_seconds() {
        let help = "Processor time used, user and system.";
        families.push(single("process_cpu_seconds_total", help, Kind::Counter, seconds));
    }
    if let Some(bytes) = resident_bytes() {
        families.push(single("process_resident_memory_bytes", "Memory in RAM.", Kind::Gauge, bytes));
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let open = files.count() as f64;
        families.push(single("process_open_fds", "Open file descriptors.", Kind::Gauge, open));
    }
    families
}

/// User and system time of `/proc/self/stat`, where there is one. Its unit is 1/100 s on every Linux that we run on.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may hold blanks; utime and stime are fields 14 and 15 of the whole line.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / 100.0)
}

/// `VmRSS` of `/proc/self/status`, where there is one.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &'static str, counter: bool, labels: Vec<(&'static str, String)>, value: f64) -> Metric {
        Metric { name, help: "Help\\ me.\nPlease.", counter, labels, value }
    }

    #[test]
    fn a_family_has_one_head_and_its_members_together() {
        let values = vec![
            metric("b_total", true, vec![("api", "Produce".to_owned())], 3.0),
            metric("a", false, Vec::new(), 0.5),
            metric("b_total", true, vec![("api", "Fe\"t\\c\nh".to_owned())], 1e15),
        ];
        assert_eq!(
            render(&core(values)),
            "# HELP rangeway_a Help\\\\ me.\\nPlease.\n# TYPE rangeway_a gauge\nrangeway_a 0.5\n\
             # HELP rangeway_b_total Help\\\\ me.\\nPlease.\n# TYPE rangeway_b_total counter\n\
             rangeway_b_total{api=\"Produce\"} 3\nrangeway_b_total{api=\"Fe\\\"t\\\\c\\nh\"} 1000000000000000\n"
        );
    }

    #[test]
    fn the_kafka_ports_counters_are_there_and_buckets_add_up() {
        let metrics = Metrics::new();
        let row = crate::protocol::table::find(18).expect("ApiVersions");
        let api = metrics.api(row).expect("its counters");
        for took_us in [50, 300, 400, 60_000_000] {
            api.requests.fetch_add(1, Relaxed);
            api.count_reply(std::time::Duration::from_micros(took_us), 100);
        }
        metrics.count_closed("idle");
        let text = render(&kafka(&metrics));
        for line in [
            "rangeway_requests_total{api=\"ApiVersions\"} 4",
            "rangeway_response_bytes_total{api=\"ApiVersions\"} 400",
            "rangeway_request_seconds_bucket{api=\"ApiVersions\",le=\"0.0001\"} 1",
            "rangeway_request_seconds_bucket{api=\"ApiVersions\",le=\"0.0005\"} 3",
            "rangeway_request_seconds_bucket{api=\"ApiVersions\",le=\"10\"} 3",
            "rangeway_request_seconds_bucket{api=\"ApiVersions\",le=\"+Inf\"} 4",
            "rangeway_request_seconds_sum{api=\"ApiVersions\"} 60.00075",
            "rangeway_request_seconds_count{api=\"ApiVersions\"} 4",
            "rangeway_connections_closed_total{reason=\"idle\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn numbers_that_are_none_have_their_names() {
        assert_eq!(number(f64::NAN), "NaN");
        assert_eq!(number(f64::NEG_INFINITY), "-Inf");
    }

    #[test]
    fn the_process_knows_its_memory_and_processor_time() {
        let text = render(&process(Instant::now()));
        for name in ["build_info", "process_cpu_seconds_total", "process_resident_memory_bytes"] {
            assert!(text.contains(&format!("\nrangeway_{name}")), "{name} in {text}");
        }
    }
}
