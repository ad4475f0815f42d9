//! Prometheus text over plain values. Owns the format and the values of the process itself; counters live where they
//! are counted and are only read here, at each scrape.

use rangeway_core::api::Metric;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

/// Something that is asked for its values at each scrape.
pub type Source = Box<dyn Fn() -> Vec<Metric> + Send + Sync>;

/// All values in the text format 0.0.4: one HELP and TYPE line per name, names in order.
pub fn render(values: &[Metric]) -> String {
    let mut families: BTreeMap<&str, Vec<&Metric>> = BTreeMap::new();
    for value in values {
        families.entry(value.name).or_default().push(value);
    }
    let mut out = String::new();
    for (name, members) in families {
        let Some(first) = members.first() else { continue };
        let kind = if first.counter { "counter" } else { "gauge" };
        let help = first.help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP rangeway_{name} {help}\n# TYPE rangeway_{name} {kind}");
        for member in members {
            let _ = writeln!(out, "rangeway_{name}{} {}", labels(&member.labels), number(member.value));
        }
    }
    out
}

fn labels(labels: &[(&'static str, String)]) -> String {
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

/// Version, age, processor time, memory and open files of this process.
pub fn process(started: Instant) -> Vec<Metric> {
    let mut values = vec![
        Metric {
            name: "build_info",
            help: "1, with the version as label.",
            counter: false,
            labels: vec![("version", env!("CARGO_PKG_VERSION").to_owned())],
            value: 1.0,
        },
        gauge(
            "process_uptime_seconds",
            "Seconds since the process started.",
            started.elapsed().as_secs_f64(),
        ),
    ];
    if let Some(seconds) = cpu_seconds() {
        values.push(Metric {
            name: "process_cpu_seconds_total",
            help: "Processor time used, user and system.",
            counter: true,
            labels: Vec::new(),
            value: seconds,
        });
    }
    if let Some(bytes) = resident_bytes() {
        values.push(gauge("process_resident_memory_bytes", "Memory in RAM.", bytes));
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        values.push(gauge("process_open_fds", "Open file descriptors.", files.count() as f64));
    }
    values
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric { name, help, counter: false, labels: Vec::new(), value }
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
        let values = [
            metric("b_total", true, vec![("api", "Produce".to_owned())], 3.0),
            metric("a", false, Vec::new(), 0.5),
            metric("b_total", true, vec![("api", "Fe\"t\\c\nh".to_owned())], 1e15),
        ];
        assert_eq!(
            render(&values),
            "# HELP rangeway_a Help\\\\ me.\\nPlease.\n# TYPE rangeway_a gauge\nrangeway_a 0.5\n\
             # HELP rangeway_b_total Help\\\\ me.\\nPlease.\n# TYPE rangeway_b_total counter\n\
             rangeway_b_total{api=\"Produce\"} 3\nrangeway_b_total{api=\"Fe\\\"t\\\\c\\nh\"} 1000000000000000\n"
        );
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
