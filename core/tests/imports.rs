//! Who imports whom, read from the sources: the table of `docs/architecture.md`, enforced.
//!
//! A module of core imports what stands above it in [`ORDER`] and itself, nothing else, save the [`EXCEPTIONS`], each
//! with its reason; the gateway sees core through [`DOORS`] only; the outside world ([`OUTSIDE`]) is touched in the
//! files named. Code that is compiled for tests alone may import anything of core.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Core's modules, lowest first. The longest name that fits a path wins: `drive::disk` is not `drive`.
const ORDER: &[&str] = &[
    "types",
    "error",
    "drive::spec",
    "drive::expr",
    "config",
    "env",
    "codec",
    "testing",
    "drive",
    "store",
    "drive::disk",
    "drive::memory",
    "loglet",
    "virtual_log",
    "range",
    "compact",
    "control",
    "reshard",
    "cursor",
    "node",
    "api",
    "replicated",
];

/// (importer, imported, why).
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("store", "drive::disk", "a disk's store gives out its leaves as drives"),
    ("store::memory", "drive::memory", "the memory's store gives out its leaves as drives"),
    ("node", "api", "the door's words (topics, views, reads) are what the node answers with"),
];

/// What the gateway may name of core.
const DOORS: &[&str] = &["api", "config", "error", "node", "replicated", "types"];

/// (word in a source, where it may stand, why there).
const OUTSIDE: &[(&str, &[&str], &str)] = &[
    ("kafka_protocol", &["gateway/src"], "the wire protocol stays in the gateway"),
    (
        "redb",
        &["core/src/control/file.rs"],
        "the embedded store of control state is an inner matter of one file",
    ),
    (
        "std::fs",
        &[
            "core/src/store",
            "core/src/drive/mod.rs",
            "core/src/control/file.rs",
            "core/src/node/verify.rs",
            "gateway/src/cli",
            "gateway/src/config",
            "gateway/src/connection/send.rs",
            "gateway/src/http/metrics.rs",
        ],
        "files belong to stores; a file slice names an open file; the offline check counts bytes; configuration and /proc are read at the edge",
    ),
    (
        "rustix",
        &[
            "core/src/store",
            "core/src/node/disks.rs",
            "core/src/node/start.rs",
            "gateway/src/connection",
            "gateway/src/cli",
        ],
        "system calls belong to stores; sizes of disks are asked at start; sockets belong to connections",
    ),
    (
        "SystemTime::now",
        &[
            "core/src/env.rs",
            "core/src/replicated/runtime.rs",
            "gateway/src/bench/produce.rs",
            "gateway/src/demo/produce.rs",
            "gateway/src/handlers/produce.rs",
        ],
        "the wall clock is read by env and by drivers that pass it in as a value",
    ),
    (
        "Instant::now",
        &[
            "core/src/node",
            "core/src/replicated/log.rs",
            "core/src/replicated/runtime.rs",
            "core/src/store",
            "gateway/src/bench",
            "gateway/src/cli",
            "gateway/src/connection",
            "gateway/src/demo",
            "gateway/src/fetch/poll.rs",
            "gateway/src/handlers",
            "gateway/src/http",
            "gateway/src/transactions/node_markers.rs",
        ],
        "deadlines are made by drivers; decisions take time as a value",
    ),
];

#[test]
fn core_imports_strictly_downward() {
    let files = sources("core/src");
    assert!(files.len() > 50, "the sources were found");
    let found: Vec<String> = files.iter().flat_map(core_violations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_exception_is_needed_and_every_name_is_a_module() {
    let used: BTreeSet<(String, String)> = sources("core/src")
        .iter()
        .flat_map(|file| imports(file).into_iter().map(|import| (file.module.clone(), import)))
        .collect();
    for (from, to, _) in EXCEPTIONS {
        let needed = used.iter().any(|(f, t)| within(f, from) && within(t, to));
        assert!(needed, "nothing in {from} imports {to}: the exception can go");
    }
    for layer in ORDER {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(layer.replace("::", "/"));
        assert!(path.is_dir() || path.with_extension("rs").is_file(), "{layer} is no module");
    }
}

#[test]
fn the_gateway_uses_core_through_its_doors_only() {
    let files = sources("gateway/src");
    assert!(files.len() > 30, "the sources were found");
    let found: Vec<String> = files.iter().flat_map(door_violations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn compatibility_tests_see_the_program_from_outside_only() {
    let files = sources("compat-tests/src");
    assert!(!files.is_empty(), "the sources were found");
    for file in files {
        for package in ["rangeway_core", "rangeway_gateway"] {
            assert!(!has_word(&file.all, package), "{}: {package} must not be named", file.path);
        }
    }
}

#[test]
fn the_outside_world_is_touched_where_it_is_said() {
    let mut found = Vec::new();
    for root in ["core/src", "gateway/src"] {
        found.extend(sources(root).iter().flat_map(outside_violations));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_import_upward_is_found_in_every_form() {
    let bad = |text: &str| core_violations(&Source::new("core/src/range/fold.rs", text));
    assert_eq!(bad("use crate::types::Offset;\nuse crate::codec::{batch, entry};"), Vec::<String>::new());
    assert_eq!(bad("use crate::control::state::State;").len(), 1);
    assert_eq!(bad("use crate::{types::Span, node::Node};").len(), 1);
    assert_eq!(bad("use crate::{\n    control::{self, command},\n    types,\n};").len(), 2);
    assert_eq!(bad("fn f() -> crate::api::Api { g() }").len(), 1);
    assert_eq!(bad("use super::super::node::Node;").len(), 1, "a way around `crate::`");
    assert_eq!(
        bad("// crate::node\n/// [`crate::node`]\nconst A: &str = \"crate::node\";"),
        Vec::<String>::new()
    );
    assert_eq!(
        bad("fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::node::Node;\n}"),
        Vec::<String>::new()
    );
    assert_eq!(
        bad("#[cfg(test)]\nmod tests {\n    fn f() {}\n}\nuse crate::node::Node;").len(),
        1,
        "code after the tests counts"
    );
}

#[test]
fn an_exception_allows_what_it_names_and_no_more() {
    let of = |path: &str, text: &str| core_violations(&Source::new(path, text)).len();
    assert_eq!(of("core/src/store/memory.rs", "use crate::drive::memory::MemoryDrive;"), 0);
    assert_eq!(of("core/src/store/journal.rs", "use crate::drive::memory::MemoryDrive;"), 1);
    assert_eq!(of("core/src/drive/quorum.rs", "use crate::drive::disk::DiskDrive;"), 1);
    assert_eq!(of("core/src/config/node.rs", "use crate::drive::spec::DriveExpr;"), 0);
    assert_eq!(of("core/src/config/node.rs", "use crate::drive::LogDrive;"), 1);
    assert_eq!(
        of("core/src/nowhere.rs", "use crate::types::Span;"),
        1,
        "a module that the table does not know"
    );
}

#[test]
fn a_gateway_that_reaches_past_the_door_is_found() {
    let of = |text: &str| door_violations(&Source::new("gateway/src/handlers/fetch.rs", text)).len();
    assert_eq!(of("use rangeway_core::api::{Api, Piece};\nuse rangeway_core::{types::NodeId, error};"), 0);
    assert_eq!(of("use rangeway_core::store::DiskStore;"), 1);
    assert_eq!(of("use rangeway_core::{api, control::Store};"), 1);
    assert_eq!(of("fn f() { rangeway_core::codec::crc32c(&[]) }"), 1);
    assert_eq!(of("#[cfg(test)]\nmod tests {\n    use rangeway_core::store::DiskStore;\n}"), 1, "tests too");
}

#[test]
fn a_clock_or_a_file_in_a_decision_is_found() {
    let of = |path: &str, text: &str| outside_violations(&Source::new(path, text)).len();
    assert_eq!(of("core/src/range/state.rs", "let now = Instant::now();"), 1);
    assert_eq!(of("core/src/range/state.rs", "let now = std::time::SystemTime::now();"), 1);
    assert_eq!(of("core/src/loglet/sealer.rs", "use std::{fs, io};"), 1);
    assert_eq!(of("core/src/virtual_log/chain.rs", "use std::fs;"), 1);
    assert_eq!(of("core/src/control/apply.rs", "use redb::Database;"), 1);
    assert_eq!(of("core/src/api.rs", "use kafka_protocol::messages::ApiKey;"), 1);
    assert_eq!(of("core/src/store/file.rs", "use std::fs::File;"), 0);
    assert_eq!(of("core/src/node/start.rs", "const FILE: &str = \"control.redb\";"), 0);
    assert_eq!(of("core/src/range/state.rs", "#[cfg(test)]\nmod tests {\n    use std::fs;\n}"), 0);
}

/// One source file without comments and texts: `all` of it, and the `code` that is not compiled for tests alone.
struct Source {
    path: String,
    module: String,
    code: String,
    all: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let all = without_comments_and_texts(text).replace("#[cfg(any(test, fuzzing))]", TESTS);
        Source { path: path.to_owned(), module: module_of(path), code: without_tests(&all), all }
    }
}

/// `core/src/range/mod.rs` is `range`, `core/src/cursor.rs` is `cursor`.
fn module_of(path: &str) -> String {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner).trim_end_matches(".rs");
    inner.trim_end_matches("/mod").replace('/', "::")
}

fn within(module: &str, prefix: &str) -> bool {
    module.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Place in the order; the longest name that fits.
fn layer(module: &str) -> Option<usize> {
    let fitting = ORDER.iter().enumerate().filter(|(_, name)| within(module, name));
    fitting.max_by_key(|(_, name)| name.len()).map(|(place, _)| place)
}

fn core_violations(file: &Source) -> Vec<String> {
    if file.module == "lib" {
        return Vec::new();
    }
    let Some(own) = layer(&file.module) else {
        return vec![format!("{}: module {} has no place in the order", file.path, file.module)];
    };
    let mut found = Vec::new();
    for import in imports(file) {
        let excepted = EXCEPTIONS.iter().any(|(f, t, _)| within(&file.module, f) && within(&import, t));
        if layer(&import).is_none_or(|place| place > own) && !excepted {
            found.push(format!("{}: {} must not import crate::{import}", file.path, file.module));
        }
    }
    found
}

fn door_violations(file: &Source) -> Vec<String> {
    let imports = paths_after(&file.all, "rangeway_core::");
    imports
        .into_iter()
        .filter(|import| !DOORS.iter().any(|door| within(import, door)))
        .map(|import| format!("{}: rangeway_core::{import} is not behind the door", file.path))
        .collect()
}

fn outside_violations(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (word, places, why) in OUTSIDE {
        let names = has_word(&file.code, word) || (*word == "std::fs" && std_group_has_fs(&file.code));
        let allowed = places.iter().any(|place| {
            file.path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        if names && !allowed {
            found.push(format!("{}: {word} does not belong here ({why})", file.path));
        }
    }
    found
}

fn std_group_has_fs(code: &str) -> bool {
    paths_after(code, "std::").iter().any(|path| within(path, "fs"))
}

fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Modules of core that the file's code names, `super` resolved as far as it leaves the file's top module.
fn imports(file: &Source) -> BTreeSet<String> {
    let mut found = paths_after(&file.code, "crate::");
    let depth = file.module.split("::").count();
    let up = "super::".repeat(depth);
    found.extend(
        paths_after(&file.code, &up).into_iter().map(|path| path.trim_start_matches("super::").to_owned()),
    );
    found
}

/// The paths that follow `prefix`, groups opened: at most their first two names.
fn paths_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].chars().next_back().is_some_and(|c| is_name(c) || c == ':') {
            continue;
        }
        open(&code[at + prefix.len()..], "", &mut found);
    }
    found
}

/// Reads one path (or a group of them) and gives what is left of the text.
fn open<'a>(text: &'a str, before: &str, found: &mut BTreeSet<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() {
                return rest;
            }
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            let after = open(rest, before, found);
            if after.len() == rest.len() {
                return rest;
            }
            rest = after;
        }
    }
    let end = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match (before, name) {
        (_, "self" | "") => before.to_owned(),
        ("", name) => name.to_owned(),
        (before, name) => format!("{before}::{name}"),
    };
    match rest.trim_start().strip_prefix("::") {
        Some(rest) if path.matches("::").count() < 1 => open(rest, &path, found),
        Some(rest) => {
            found.insert(path.clone());
            // What is inside is deeper than the table looks; it is read over.
            open(rest, &path, &mut BTreeSet::new())
        }
        None => {
            if !path.is_empty() {
                found.insert(path);
            }
            match rest.trim_start().strip_prefix("as ") {
                Some(alias) => alias.trim_start().trim_start_matches(is_name),
                None => rest.strip_prefix('*').unwrap_or(rest),
            }
        }
    }
}

/// Replaces comments and what stands in quotes by nothing; the shape of the code stays.
fn without_comments_and_texts(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else if let Some(hashes) = raw_text(rest).filter(|_| !out.chars().next_back().is_some_and(is_name))
        {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = &rest[hashes + 2..];
            out.push_str("\"\"");
            rest = body.find(&close).map_or("", |end| &body[end + close.len()..]);
        } else if c == '"' {
            let mut end = 1;
            let bytes = rest.as_bytes();
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            out.push_str("\"\"");
            rest = rest.get(end + 1..).unwrap_or("");
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
            rest = &rest[rest[1..].find('\'').unwrap_or(0) + 2..];
            if rest.starts_with('\'') {
                rest = &rest[1..];
            }
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// How many hashes open a raw text here.
fn raw_text(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// What marks an item as compiled for tests (and fuzzing) alone.
const TESTS: &str = "#[cfg(test)]";

/// Cuts modules and items that are marked with [`TESTS`].
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, item)) = rest.split_once(TESTS) {
        out.push_str(before);
        rest = after_item(item);
    }
    out.push_str(rest);
    out
}

/// The text after an item: after its `;`, or its closing brace.
fn after_item(text: &str) -> &str {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return &text[at + 1..];
                }
            }
            ';' if depth == 0 => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

/// All sources below `root`, save the files that a `#[cfg(test)]` names.
fn sources(root: &str) -> Vec<Source> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("core lies in the workspace").to_owned();
    let mut paths = Vec::new();
    collect(&top.join(root), &mut paths);
    paths.sort();
    let mut out = Vec::new();
    let mut tests: Vec<String> = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a source can be read");
        let name = path.strip_prefix(&top).expect("below the top").to_string_lossy().into_owned();
        let file = Source::new(&name, &text);
        tests.extend(test_modules(&file));
        out.push(file);
    }
    out.retain(|file| !tests.iter().any(|test| within(&file.module, test)));
    out
}

/// Modules that the file declares for tests alone.
fn test_modules(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (at, mark) in file.all.match_indices(TESTS) {
        let item = file.all[at + mark.len()..].trim_start().trim_start_matches("#[doc(hidden)]").trim_start();
        let item = item.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if let Some((name, _)) = item.strip_prefix("mod ").and_then(|m| m.split_once(';'))
            && name.chars().all(is_name)
        {
            found.push(format!("{}::{name}", file.module).trim_start_matches("lib::").to_owned());
        }
    }
    found
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    for item in std::fs::read_dir(dir).expect("a folder can be read") {
        let path = item.expect("an entry can be read").path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}
