//! Levels of logs that are changed while the node runs: Kafka's broker loggers. A logger is `root` or a module of the
//! program (`rangeway_core::store`); one that has no level of its own logs as the start said. Owns what was set; it is
//! gone with the process, as in Kafka.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use tracing_subscriber::EnvFilter;

/// The logger of everything that has no level of its own.
pub const ROOT: &str = "root";
/// Where loggers of ours begin.
const OURS: [&str; 2] = ["rangeway_core", "rangeway_gateway"];
/// Modules of ours that are always shown: Kafka's tools set what they are shown.
const SHOWN: [&str; 14] = [
    "rangeway_core",
    "rangeway_core::control",
    "rangeway_core::loglet",
    "rangeway_core::node",
    "rangeway_core::range",
    "rangeway_core::replicated",
    "rangeway_core::store",
    "rangeway_gateway",
    "rangeway_gateway::cli",
    "rangeway_gateway::connection",
    "rangeway_gateway::groups",
    "rangeway_gateway::handlers",
    "rangeway_gateway::http",
    "rangeway_gateway::protocol",
];
/// Kafka's words, in order. FATAL is as good as ERROR: nothing is logged above that.
const LEVELS: [(&str, &str); 6] = [
    ("DEBUG", "debug"),
    ("ERROR", "error"),
    ("FATAL", "error"),
    ("INFO", "info"),
    ("TRACE", "trace"),
    ("WARN", "warn"),
];

/// Puts a filter into force.
///
/// Errors: why it cannot.
pub type Apply = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The levels of a running program.
pub struct Levels {
    base: String,
    set: Mutex<BTreeMap<String, &'static str>>,
    apply: Apply,
}

/// A logger as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logger {
    /// Its name.
    pub name: String,
    /// In Kafka's words.
    pub level: String,
    /// Whether it was set while the node runs.
    pub set: bool,
}

impl Levels {
    /// Levels over the filter of the start.
    pub fn new(base: String, apply: Apply) -> Levels {
        Levels { base, set: Mutex::default(), apply }
    }

    /// All loggers that have a level or could well have one, by name.
    pub fn loggers(&self) -> Vec<Logger> {
        let set = self.set.lock();
        let mut names: Vec<&str> =
            [ROOT].into_iter().chain(SHOWN).chain(set.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        let logger = |name: &str| match set.get(name) {
            Some(level) => Logger { name: name.to_owned(), level: (*level).to_owned(), set: true },
            None => Logger { name: name.to_owned(), level: self.inherited(name, &set), set: false },
        };
        names.into_iter().map(logger).collect()
    }

    /// The level of a logger that none was set for: what was set for, or the start gave, the nearest one above it.
    fn inherited(&self, name: &str, set: &BTreeMap<String, &'static str>) -> String {
        let directives = || self.base.split(',').map(str::trim);
        let given = |name: &str| {
            let targets = directives().filter_map(|one| one.split_once('='));
            let own = targets.filter(|(target, _)| *target == name).find_map(|(_, level)| kafka(level));
            set.get(name).copied().or(own)
        };
        let mut above = Some(name).filter(|name| *name != ROOT);
        while let Some(module) = above {
            if let Some(level) = given(module) {
                return level.to_owned();
            }
            above = module.rsplit_once("::").map(|(parent, _)| parent);
        }
        let bare = || directives().find_map(kafka);
        set.get(ROOT).copied().or_else(bare).unwrap_or("ERROR").to_owned()
    }

    /// Sets (`Some`) and takes back (`None`) levels, all or nothing. With `validate_only` nothing changes.
    ///
    /// Errors: what is no logger or no level.
    pub fn change(&self, changes: &[(String, Option<String>)], validate_only: bool) -> Result<(), String> {
        let mut now = self.set.lock();
        let mut set = now.clone();
        for (name, level) in changes {
            // Kafka's tools take no colon in a name.
            let asked = name;
            let name = &name.replace('.', "::");
            if name != ROOT && !is_ours(name) {
                return Err(format!("Logger {asked} does not exist!"));
            }
            match level {
                None if name == ROOT => {
                    return Err("Removing the log level of the root logger is not allowed".to_owned());
                }
                None => drop(set.remove(name)),
                Some(level) => {
                    let known = LEVELS.iter().find(|(kafka, _)| *kafka == level);
                    let (level, _) = known.ok_or_else(|| {
                        let words: Vec<&str> = LEVELS.iter().map(|(kafka, _)| *kafka).collect();
                        format!(
                            "Cannot set the log level of {name} to {level} as it is not a supported log level. \
                             Valid log levels are {}",
                            words.join(", ")
                        )
                    })?;
                    set.insert(name.clone(), level);
                }
            }
        }
        let filter = EnvFilter::try_new(directives(&self.base, &set)).map_err(|e| e.to_string())?;
        if validate_only {
            return Ok(());
        }
        (self.apply)(filter)?;
        *now = set;
        Ok(())
    }
}

/// The filter of the start with what was set behind it: of two directives for one target the later one holds.
fn directives(base: &str, set: &BTreeMap<String, &'static str>) -> String {
    let word =
        |level: &str| LEVELS.iter().find(|(kafka, _)| *kafka == level).map_or("error", |(_, ours)| ours);
    let mut all = vec![base.to_owned()];
    // `root` first: it is the one without a target.
    all.extend(set.get(ROOT).map(|level| word(level).to_owned()));
    all.extend(
        set.iter().filter(|(name, _)| *name != ROOT).map(|(name, level)| format!("{name}={}", word(level))),
    );
    all.retain(|one| !one.is_empty());
    all.join(",")
}

/// Kafka's word for a level.
fn kafka(level: &str) -> Option<&'static str> {
    let level = level.trim().to_ascii_lowercase();
    LEVELS.iter().find(|(_, ours)| *ours == level).map(|(kafka, _)| *kafka)
}

/// Whether a name is a module of ours.
fn is_ours(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let below =
        |root: &str| name.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    OURS.into_iter().any(below) && name.split("::").all(|part| !part.is_empty() && part.chars().all(word))
}

impl fmt::Debug for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Levels({}; {:?})", self.base, self.set.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn levels(base: &str) -> (Levels, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let to = applied.clone();
        let apply = move |filter: EnvFilter| {
            to.lock().push(filter.to_string());
            Ok(())
        };
        (Levels::new(base.to_owned(), Box::new(apply)), applied)
    }

    fn shown(levels: &Levels) -> Vec<String> {
        let one =
            |logger: Logger| format!("{}={}{}", logger.name, logger.level, if logger.set { "!" } else { "" });
        levels.loggers().into_iter().map(one).collect()
    }

    fn change(levels: &Levels, changes: &[(&str, Option<&str>)]) -> Result<(), String> {
        let changes: Vec<_> =
            changes.iter().map(|(name, level)| ((*name).to_owned(), level.map(str::to_owned))).collect();
        levels.change(&changes, false)
    }

    fn level(levels: &Levels, name: &str) -> String {
        let of = format!("{name}=");
        shown(levels).into_iter().find_map(|one| one.strip_prefix(&of).map(str::to_owned)).unwrap()
    }

    #[test]
    fn levels_are_set_and_taken_back() {
        let (levels, applied) = levels("info,rangeway_core=debug");
        let all = |levels: &Levels| {
            ["rangeway_core::store", "rangeway_gateway", "rangeway_gateway::http", "root"]
                .map(|l| level(levels, l))
        };
        assert_eq!(all(&levels), ["DEBUG", "INFO", "INFO", "INFO"]);
        change(&levels, &[("rangeway_gateway::http", Some("TRACE")), ("root", Some("WARN"))]).unwrap();
        assert_eq!(all(&levels), ["DEBUG", "WARN", "TRACE!", "WARN!"]);
        let filter = applied.lock().last().unwrap().clone();
        assert!(filter.contains("rangeway_gateway::http=trace") && filter.contains("warn"), "{filter}");
        assert!(!filter.contains("info"), "{filter}");
        change(&levels, &[("rangeway_gateway.http", Some("TRACE"))]).unwrap();
        assert_eq!(level(&levels, "rangeway_gateway::http"), "TRACE!", "as Kafka's tools can write it");
        change(&levels, &[("rangeway_gateway::http", None), ("rangeway_gateway", Some("FATAL"))]).unwrap();
        assert_eq!(all(&levels), ["DEBUG", "FATAL!", "FATAL", "WARN!"]);
    }

    #[test]
    fn shown_loggers_are_modules() {
        for name in SHOWN.iter().filter(|name| name.contains("::")) {
            let (package, module) = name.split_once("::").unwrap();
            let package = package.strip_prefix("rangeway_").unwrap();
            let path = format!("{}/../{package}/src/{module}", env!("CARGO_MANIFEST_DIR"));
            assert!(std::path::Path::new(&path).is_dir(), "{path}");
        }
    }

    #[test]
    fn what_is_no_logger_or_level_is_refused_and_changes_nothing() {
        let (levels, applied) = levels("warn");
        for (name, level) in [
            ("kafka.server", Some("INFO")),
            ("rangeway_corex", Some("INFO")),
            ("rangeway_core::", Some("INFO")),
            ("rangeway_core=debug,x", Some("INFO")),
            ("rangeway_core", Some("LOUD")),
            ("rangeway_core", Some("info")),
            ("root", None),
        ] {
            change(&levels, &[("rangeway_gateway", Some("DEBUG")), (name, level)]).unwrap_err();
        }
        let only_checked = [("root".to_owned(), Some("TRACE".to_owned()))];
        levels.change(&only_checked, true).unwrap();
        assert!(shown(&levels).iter().all(|one| one.ends_with("=WARN")), "{levels:?}");
        assert!(applied.lock().is_empty());
    }
}
