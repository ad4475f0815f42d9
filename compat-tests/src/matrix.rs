//! The page of the documentation that shows what each client can do with Rangeway and with the reference broker, side by
//! side.
//!
//! A suite is a folder of `clients` with an `expected.list` and a pin; whatever it is, it gets a section. A section is written from
//! reports of one run against both brokers, and checked against the suite's list and pin. Suites that a runner of their own holds to their lists get a row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::broker::source;
use crate::suite::{Report, expected_lines, folder};

/// Suites with a runner of their own, which compares both brokers with `expected.list` (both pass), `failing.list` (the reference passes)
/// and `waiting.list` (what is not served yet, not run).
const ELSEWHERE: &[&str] = &["librdkafka"];

const PASSES: &str = "passes";
/// A line of a suite that did not run against both brokers yet.
const UNMEASURED: &str = "not measured";

/// One suite as the page shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// What is pinned, such as `aiokafka 0.14.0`.
    pub pin: String,
    /// Of each line what it came to here and with the reference.
    pub lines: BTreeMap<String, [String; 2]>,
}

impl Section {
    /// From what the suite expects and what it reported about this broker and the reference.
    pub fn of(pin: String, expected: &str, reports: [&Report; 2]) -> Self {
        let names = expected_lines(expected).into_iter().map(str::to_owned);
        let names: BTreeSet<String> = names.chain(reports.iter().flat_map(|r| r.passed.clone())).collect();
        let cell = |name: &String| reports.map(|report| outcome(report, name));
        Self { pin, lines: names.iter().map(|name| (name.clone(), cell(name))).collect() }
    }

    /// Of a suite that has not run against both brokers.
    pub fn unmeasured(pin: String, expected: &str) -> Self {
        let cells = || [UNMEASURED, UNMEASURED].map(str::to_owned);
        Self {
            pin,
            lines: expected_lines(expected).into_iter().map(|name| (name.to_owned(), cells())).collect(),
        }
    }

    fn passed(&self, side: usize) -> usize {
        self.lines.values().filter(|cells| cells[side] == PASSES).count()
    }
}

/// What a suite's own lists come to.
struct Lists {
    pin: String,
    expected: usize,
    failing: usize,
    waiting: usize,
}

impl Lists {
    fn of(suite: &str) -> Result<Self> {
        let at = folder(suite);
        let read = |name: &str| fs::read_to_string(at.join(name)).with_context(|| format!("{suite}/{name}"));
        let count = |name: &str| Ok::<_, anyhow::Error>(expected_lines(&read(name)?).len());
        Ok(Self {
            pin: read("version")?.lines().next().unwrap_or_default().to_owned(),
            expected: count("expected.list")?,
            failing: count("failing.list")?,
            waiting: count("waiting.list")?,
        })
    }

    fn row(&self, suite: &str) -> String {
        let all = self.expected + self.failing;
        let link = format!("[{suite}'s own tests](../compat-tests/clients/{suite}/README.md)");
        format!("| {link} | {} | {all} | {} | {all} |\n", self.pin, self.expected)
    }

    fn text(&self, suite: &str) -> String {
        let why = format!("../compat-tests/clients/{suite}/why.md");
        format!(
            "{suite}'s own tests: the row counts their lists, which `compat-tests/{suite}.sh --reference` compares with both brokers in one run. [Why {} fail here]({why}); \
             {} more need\nwhat is not served yet (share groups), and are not run. ",
            self.failing, self.waiting
        )
    }
}

fn outcome(report: &Report, name: &str) -> String {
    match report.failure(name) {
        Some(failure) => {
            format!("fails: {}", failure.replace('|', "/").trim_start_matches(name).trim_start_matches(": "))
        }
        None if report.passed.contains(name) => PASSES.to_owned(),
        None => "never came to it".to_owned(),
    }
}

/// Names of all suites that the page shows, by their folders.
pub fn suites() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(source().join("clients"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.join("expected.list").is_file() && !ELSEWHERE.contains(&name.as_str()) {
            found.insert(name);
        }
    }
    Ok(found)
}

/// What the suite pins: its `version`, or what it takes from its registry (`requirements.txt`, `go.mod`, `pom.xml`).
pub fn pin(suite: &str) -> Result<String> {
    let at = folder(suite);
    let read = |name: &str| fs::read_to_string(at.join(name)).ok();
    let pins = if let Some(version) = read("version") {
        vec![format!("{suite} {}", version.trim())]
    } else if let Some(text) = read("requirements.txt") {
        text.lines().take(1).map(|line| line.replace("==", " ")).collect()
    } else if let Some(text) = read("go.mod") {
        of_go(&text)
    } else if let Some(text) = read("pom.xml") {
        of_maven(&text)
    } else {
        bail!("{} pins nothing", at.display());
    };
    ensure!(!pins.is_empty(), "nothing is pinned in {}", at.display());
    Ok(pins.join(", "))
}

fn of_go(text: &str) -> Vec<String> {
    let direct =
        |line: &&str| line.starts_with('\t') && !line.ends_with("// indirect") && !line.contains(".invalid/");
    text.lines().filter(direct).map(|line| line.trim().to_owned()).collect()
}

/// Kafka's own artifacts.
fn of_maven(text: &str) -> Vec<String> {
    let tag = |part: &str, name: &str| {
        let after = part.split_once(&format!("<{name}>"))?.1;
        Some(after.split_once("</")?.0.trim().to_owned())
    };
    let artifact = |part: &str| {
        (tag(part, "groupId")? == "org.apache.kafka")
            .then(|| Some(format!("{} {}", tag(part, "artifactId")?, tag(part, "version")?)))?
    };
    text.split("<dependency>").skip(1).filter_map(artifact).collect()
}

/// The version of the reference broker.
pub fn reference_version() -> Result<String> {
    let text = fs::read_to_string(source().join("reference/pom.xml"))?;
    let pins = of_maven(&text);
    pins.first()
        .and_then(|pin| pin.split_once(' '))
        .map(|(_, version)| version.to_owned())
        .context("no reference is pinned")
}

/// Where the page is.
pub fn path() -> std::path::PathBuf {
    source().join("../docs/compatibility.md")
}

/// Writes the page from its sections.
pub fn render(sections: &BTreeMap<String, Section>, reference: &str) -> Result<String> {
    let mut page = format!(
        "# Compatibility\n\nWhat clients that others wrote can do with Rangeway and with Apache Kafka {reference}, as measured in one run: each suite ran against a broker \
         of its own\nof either kind, with the same program. `cargo run -p rangeway-compat-tests --bin compat-matrix` runs the suites against both and writes this \
         page; named suites only\nwhen names are given. A test compares it with each suite's pin and `expected.list` (`compat-tests/clients`), which comes from the reference alone.\n\n\
         | suite | pinned | lines | Rangeway passes | Kafka {reference} passes |\n|---|---|---|---|---|\n"
    );
    for (name, section) in sections {
        let (ours, theirs) = (section.passed(0), section.passed(1));
        writeln!(
            page,
            "| [{name}](#{name}) | {} | {} | {ours} | {theirs} |",
            section.pin,
            section.lines.len()
        )?;
    }
    for name in ELSEWHERE {
        page.push_str(&Lists::of(name)?.row(name));
    }
    page.push('\n');
    for name in ELSEWHERE {
        page.push_str(&Lists::of(name)?.text(name));
    }
    page.push_str("The APIs and versions behind all of this: [Kafka APIs](kafka-apis.md).\n");
    for (name, section) in sections {
        write!(
            page,
            "\n## {name}\n\n{}\n\n| line | Rangeway | Kafka {reference} |\n|---|---|---|\n",
            section.pin
        )?;
        for (line, [ours, theirs]) in &section.lines {
            writeln!(page, "| {line} | {ours} | {theirs} |")?;
        }
    }
    Ok(page)
}

/// Reads the sections of a page as `render` wrote them.
pub fn parse(page: &str) -> Result<BTreeMap<String, Section>> {
    let mut sections = BTreeMap::new();
    for text in page.split("\n## ").skip(1) {
        let mut lines = text.lines().filter(|line| !line.is_empty());
        let name = lines.next().context("a section has a name")?.to_owned();
        let pin = lines.next().context("a section has a pin")?.to_owned();
        let mut section = Section { pin, lines: BTreeMap::new() };
        for row in lines.skip(2) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [line, ours, theirs] = cells[..] else { bail!("not a row of {name}: {row}") };
            section.lines.insert(line.to_owned(), [ours.to_owned(), theirs.to_owned()]);
        }
        sections.insert(name, section);
    }
    Ok(sections)
}

/// Errors: every suite that the page lacks or has too much, and all in which a section is not what its folder says.
pub fn check(page: &str) -> Result<()> {
    let sections = parse(page)?;
    let suites = suites()?;
    let mut wrong: Vec<String> = sections
        .keys()
        .filter(|name| !suites.contains(*name))
        .map(|name| format!("{name}: there is no such suite"))
        .collect();
    for name in &suites {
        let Some(section) = sections.get(name) else {
            wrong.push(format!("{name}: the page lacks it"));
            continue;
        };
        let expected = fs::read_to_string(folder(name).join("expected.list"))?;
        wrong.extend(
            differences(section, &pin(name)?, &expected).into_iter().map(|what| format!("{name}: {what}")),
        );
    }
    if wrong.is_empty() && page != render(&sections, &reference_version()?)? {
        wrong.push("the page is not written as it is now, or for another reference".to_owned());
    }
    ensure!(
        wrong.is_empty(),
        "docs/compatibility.md:\n{}\nrun compat-matrix for these suites",
        wrong.join("\n")
    );
    Ok(())
}

fn differences(section: &Section, pin: &str, expected: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if section.pin != pin {
        wrong.push(format!("measured with {}, pinned is {pin}", section.pin));
    }
    let expected = expected_lines(expected);
    wrong.extend(
        expected
            .iter()
            .filter(|line| !section.lines.contains_key(**line))
            .map(|line| format!("{line} is missing")),
    );
    for (line, cells) in &section.lines {
        if !expected.contains(line.as_str()) {
            wrong.push(format!("{line} is not expected"));
        } else if [PASSES, UNMEASURED].iter().all(|fit| cells.iter().any(|cell| cell != fit)) {
            wrong.push(format!("{line}: {} here, {} with the reference", cells[0], cells[1]));
        }
    }
    wrong
}

/// The report of a suite in a folder of results, if it ran.
pub fn report(results: &Path, suite: &str) -> Result<Option<Report>> {
    match fs::read_to_string(results.join(suite)) {
        Ok(text) => Ok(Some(Report::parse(&text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section() -> Section {
        let ours = Report::parse("ok a 0.1s\nFAIL b: too | late\n");
        let theirs = Report::parse("ok a\nok b\n");
        Section::of("x 1.0".into(), "a\nb\nc\n", [&ours, &theirs])
    }

    #[test]
    fn a_section_says_what_each_line_came_to_on_both_sides() {
        let cells = |name: &str| section().lines[name].clone();
        assert_eq!(cells("a"), ["passes", "passes"]);
        assert_eq!(cells("b"), ["fails: too / late", "passes"]);
        assert_eq!(cells("c"), ["never came to it", "never came to it"]);
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let sections = BTreeMap::from([("x".to_owned(), section())]);
        let page = render(&sections, "4.3.1").unwrap();
        assert!(page.contains("| [x](#x) | x 1.0 | 3 | 1 | 2 |"), "{page}");
        assert_eq!(parse(&page).unwrap(), sections);
    }

    #[test]
    fn a_suite_with_a_runner_of_its_own_is_counted_by_its_lists() {
        let lists = Lists { pin: "l 2".into(), expected: 5, failing: 2, waiting: 3 };
        assert!(lists.row("l").ends_with("| l 2 | 7 | 5 | 7 |\n"), "{}", lists.row("l"));
        let found = Lists::of("librdkafka").unwrap();
        assert!(found.pin.starts_with("librdkafka ") && !found.pin.contains('\n'), "{}", found.pin);
        assert!(found.expected > found.failing && found.failing > 0);
    }

    #[test]
    fn another_pin_a_missing_an_unexpected_and_a_failed_line_are_named() {
        let wrong = differences(&section(), "x 1.1", "a\nb\nd\n").join("\n");
        for part in ["pinned is x 1.1", "d is missing", "c is not expected", "b: fails: too / late here"] {
            assert!(wrong.contains(part), "{wrong}");
        }
        assert!(!wrong.contains("a:"), "{wrong}");
        assert!(differences(&Section::unmeasured("x 1.0".into(), "a\nb\n"), "x 1.0", "a\nb\n").is_empty());
    }

    #[test]
    fn pins_are_what_a_client_takes_from_its_registry() {
        assert_eq!(
            of_go(
                "module m\nrequire (\n\ta/b v1.2\n\tx.invalid/c v0.0.0\n)\nrequire (\n\td v1 // indirect\n)\n"
            ),
            ["a/b v1.2"]
        );
        let maven = "<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>4.4.0</version></dependency>\
                     <dependency><groupId>o</groupId><artifactId>l</artifactId><version>1</version></dependency>";
        assert_eq!(of_maven(maven), ["kafka-clients 4.4.0"]);
        assert!(suites().unwrap().iter().all(|suite| pin(suite).is_ok()));
    }
}
