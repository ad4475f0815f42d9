//! `rangeway verify`: checks data directories that no node uses.

use super::failure::Failure;
use super::table::bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rangeway_core::node::verify::{Finding, Verified, verify};
use std::path::{Path, PathBuf};

/// `rangeway verify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 everything is as it was written, 1 damage was found and is listed, 3 a directory \
    is in use or cannot be read.\nNothing is changed."
)]
pub struct VerifyArgs {
    /// Data directory; may be repeated
    #[arg(long, value_name = "DIR", required = true)]
    data: Vec<PathBuf>,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `rangeway verify`.
pub fn run(args: VerifyArgs) -> Result<(), Failure> {
    args.data.iter().try_for_each(|dir| is_data(dir))?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes}  {msg}") {
        bar.set_style(style);
    }
    let verified = verify(&args.data, |file, done, total| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(
            file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        );
    });
    bar.finish_and_clear();
    let verified = verified.map_err(|e| Failure::unusable("cannot_verify", e.to_string()))?;
    if args.json {
        let text = serde_json::to_string(&verified).map_err(|e| Failure::failed("json", e.to_string()))?;
        super::print(&(text + "\n"))?;
    } else {
        super::print(&report(&verified))?;
    }
    match verified.findings.len() {
        0 => Ok(()),
        n => {
            let places = if n == 1 { "place" } else { "places" };
            let failure = Failure::failed("damaged", format!("{n} damaged {places}"));
            Err(match hint(&verified.findings) {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
    }
}

/// What the damage means for whoever runs the node, by the first kind of it that is there.
fn hint(findings: &[Finding]) -> Option<&'static str> {
    let has = |kind: &str| findings.iter().any(|finding| finding.kind == kind);
    let known = [
        ("copied disk", "a node does not start with it; give the directories that it used last, each once"),
        (
            "control state",
            "a node does not start with it; put back a copy of control.redb that was made while none ran",
        ),
        (
            "superblock",
            "a node does not start with this directory; where all drives have another copy, start with an empty \
                        one in its place",
        ),
    ];
    let known = known.into_iter().find(|(kind, _)| has(kind)).map(|(_, hint)| hint);
    let entry = "a damaged entry is not served; it is read from another copy where its drive has one";
    known.or(findings.iter().any(|finding| finding.segment.is_some()).then_some(entry))
}

/// Refuses what no node has kept data in, before it is looked for data.
fn is_data(dir: &Path) -> Result<(), Failure> {
    let why = if !dir.exists() {
        "there is no such directory"
    } else if !dir.is_dir() {
        "it is a file"
    } else if dir.join("superblock").exists() || dir.join("extents").exists() {
        return Ok(());
    } else {
        "it has neither superblock nor extents"
    };
    let message = format!("{} is no data directory: {why}", dir.display());
    Err(Failure::unusable("not_data", message).hint("name what a node was started with as --data"))
}

fn report(verified: &Verified) -> String {
    let mut out: String = verified.findings.iter().map(|finding| line(finding) + "\n").collect();
    let Verified { files, entries, torn_bytes, .. } = verified;
    out.push_str(&format!("{files} files, {}, {entries} entries checked", bytes(verified.bytes)));
    if *torn_bytes > 0 {
        out.push_str(&format!(
            "; {torn_bytes} bytes of an unfinished last write, which the next start cuts off"
        ));
    }
    out.push('\n');
    if !verified.control {
        out.push_str("no control state is in these directories; it is in the first one of a node\n");
    }
    if verified.findings.is_empty() {
        out.push_str("no damage\n");
    }
    out
}

fn line(finding: &Finding) -> String {
    let mut line = format!("{}: {}", finding.kind, finding.file.display());
    if let Some(position) = finding.position {
        line.push_str(&format!(" position {position}"));
    }
    if let Some(segment) = &finding.segment {
        line.push_str(&format!(" segment {segment}"));
    }
    if let Some(address) = finding.address {
        line.push_str(&format!(" address {address}"));
    }
    format!("{line}: {}", finding.what)
}
