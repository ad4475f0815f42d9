//! Drive expressions as text, and their placement on a node's disks (design 16). Pure.
//!
//! ```text
//! memory | disk | quorum(3, write=2) | quorum(write=2, disk, memory) | striped(4, quorum(3, write=2)) | striped(disk, disk)
//! ```
//! A number stands for so many equal children: of the one child that is given, else of `disk`. `write` is a majority
//! unless given. Printing gives the shortest text that parses to the same expression.

use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::types::{DiskId, LogletId, NodeId};
use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most children of one quorum or stripe.
pub const CHILDREN_MAX: usize = 16;
/// Most levels of an expression; `disk` has one.
pub const DEPTH_MAX: usize = 4;

const _: () =
    assert!(CHILDREN_MAX.pow(DEPTH_MAX as u32 - 1) <= u16::MAX as usize, "leaves are numbered in 16 bits");

/// Why a text is no drive expression: what stands there and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("drive expression, column {column}: expected {expected}, found {found}")]
pub struct ExprError {
    /// Where, in characters, from 1.
    pub column: usize,
    /// What would be right.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

/// Why an expression cannot be placed on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Copies of a quorum lie on different disks, and there are too few, until more data directories are given.
    #[error(
        "drive `{expr}` needs {needed} disks and this node has {have}: start it with {} more `--data` {}, each on a disk of \
         its own",
        needed - have,
        if needed - have == 1 { "directory" } else { "directories" }
    )]
    TooFewDisks {
        /// The expression.
        expr: String,
        /// Disks that it needs.
        needed: usize,
        /// Disks that there are.
        have: usize,
    },
    /// The node has disks enough, but fewer of them live than the expression cannot do without: until some are back.
    #[error(
        "drive `{expr}` needs {least} disks that live and this node has {live}: {dead}; bring a disk back or replace it, then \
         start again"
    )]
    TooFewLive {
        /// The expression.
        expr: String,
        /// Disks without which nothing would be acknowledged.
        least: usize,
        /// Disks that live.
        live: usize,
        /// Those that do not, and why.
        dead: String,
    },
    /// The expression breaks a bound; it did not come from [`DriveExpr::from_str`].
    #[error("drive expression out of bounds: {0}")]
    Bounds(String),
}

impl FromStr for DriveExpr {
    type Err = ExprError;

    fn from_str(text: &str) -> Result<DriveExpr, ExprError> {
        let mut parser = Parser { text, at: 0 };
        let expr = parser.expr(1)?;
        match parser.peek() {
            None => Ok(expr),
            Some(_) => Err(parser.error("the end of the expression")),
        }
    }
}

impl fmt::Display for DriveExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveExpr::Memory => f.write_str("memory"),
            DriveExpr::Disk => f.write_str("disk"),
            DriveExpr::Quorum { children, write } => show(f, "quorum", children, Some(*write)),
            DriveExpr::Striped { children } => show(f, "striped", children, None),
        }
    }
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, children: &[DriveExpr], write: Option<u8>) -> fmt::Result {
    write!(f, "{name}(")?;
    let mut separator = "";
    let equal = children.windows(2).all(|w| w[0] == w[1]);
    if equal {
        write!(f, "{}", children.len())?;
        separator = ", ";
    }
    if let Some(write) = write {
        write!(f, "{separator}write={write}")?;
        separator = ", ";
    }
    let shown = match children {
        [DriveExpr::Disk, ..] if equal => &[],
        [one, ..] if equal => std::slice::from_ref(one),
        all => all,
    };
    for child in shown {
        write!(f, "{separator}{child}")?;
        separator = ", ";
    }
    f.write_str(")")
}

struct Parser<'a> {
    text: &'a str,
    /// Byte position.
    at: usize,
}

/// What stands between a combinator's parentheses, with the column of each part.
#[derive(Default)]
struct Arguments {
    count: Option<(usize, usize)>,
    write: Option<(u8, usize)>,
    children: Vec<DriveExpr>,
}

const DRIVES: &str = "`memory`, `disk`, `quorum(…)` or `striped(…)`";

impl<'a> Parser<'a> {
    fn expr(&mut self, depth: usize) -> Result<DriveExpr, ExprError> {
        self.peek();
        let start = self.at;
        let name = self.word();
        let combinator = matches!(name, "quorum" | "striped");
        if depth > DEPTH_MAX || (combinator && depth == DEPTH_MAX) {
            return Err(self.error_at(start, format!("at most {DEPTH_MAX} levels")));
        }
        match name {
            "memory" => Ok(DriveExpr::Memory),
            "disk" => Ok(DriveExpr::Disk),
            "quorum" => {
                let arguments = self.arguments(depth)?;
                let children = self.children(start, arguments.count, arguments.children)?;
                let (write, column) = arguments.write.unwrap_or((children.len() as u8 / 2 + 1, start));
                if write < 1 || usize::from(write) > children.len() {
                    let expected = format!("`write` between 1 and {}, the number of copies", children.len());
                    return Err(self.error_at(column, expected));
                }
                Ok(DriveExpr::Quorum { children, write })
            }
            "striped" => {
                let arguments = self.arguments(depth)?;
                if let Some((_, column)) = arguments.write {
                    return Err(
                        self.error_at(column, "a number or a drive; only a quorum has `write`".into())
                    );
                }
                Ok(DriveExpr::Striped {
                    children: self.children(start, arguments.count, arguments.children)?,
                })
            }
            _ => Err(self.error_at(start, DRIVES.into())),
        }
    }

    fn arguments(&mut self, depth: usize) -> Result<Arguments, ExprError> {
        let mut arguments = Arguments::default();
        self.token('(', "`(` and the children, such as `(3)`")?;
        loop {
            let next = self.peek();
            let column = self.at;
            if next.is_some_and(|c| c.is_ascii_digit()) {
                let fresh = arguments.count.is_none() && arguments.children.is_empty();
                if !fresh {
                    return Err(self.error("a drive; the number of equal children stands first, once"));
                }
                arguments.count = Some((self.number(CHILDREN_MAX, "children")?, column));
            } else if self.rest().starts_with("write") {
                if arguments.write.is_some() {
                    return Err(self.error("`write` once"));
                }
                self.word();
                self.token('=', "`=` and a number, such as `write=2`")?;
                self.peek();
                let column = self.at;
                let n = self.number(CHILDREN_MAX, "copies")?;
                arguments.write = Some((n as u8, column));
            } else {
                if arguments.children.len() == CHILDREN_MAX {
                    return Err(self.error(&format!("at most {CHILDREN_MAX} children")));
                }
                arguments.children.push(self.expr(depth + 1)?);
            }
            match self.peek() {
                Some(',') => self.at += 1,
                Some(')') => break,
                _ => return Err(self.error("`,` or `)`")),
            }
        }
        self.at += 1;
        Ok(arguments)
    }

    fn children(
        &self,
        start: usize,
        count: Option<(usize, usize)>,
        mut given: Vec<DriveExpr>,
    ) -> Result<Vec<DriveExpr>, ExprError> {
        let Some((count, column)) = count else {
            if given.is_empty() {
                return Err(self.error_at(start, "a number of children or the children themselves".into()));
            }
            return Ok(given);
        };
        if given.len() > 1 {
            let expected = "either a number and one drive, or the drives without a number";
            return Err(self.error_at(column, expected.into()));
        }
        let child = given.pop().unwrap_or(DriveExpr::Disk);
        Ok(vec![child; count])
    }

    fn number(&mut self, max: usize, what: &str) -> Result<usize, ExprError> {
        let start = self.at;
        let digits = self.rest().find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest().len());
        self.at += digits;
        match self.text.get(start..self.at).and_then(|s| s.parse::<usize>().ok()) {
            Some(n) if (1..=max).contains(&n) => Ok(n),
            _ => Err(self.error_at(start, format!("a number of {what} between 1 and {max}"))),
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or("")
    }

    fn token(&mut self, token: char, expected: &str) -> Result<(), ExprError> {
        if self.peek() != Some(token) {
            return Err(self.error(expected));
        }
        self.at += token.len_utf8();
        Ok(())
    }

    /// The next character that is no white space; the position moves to it.
    fn peek(&mut self) -> Option<char> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn error(&self, expected: &str) -> ExprError {
        self.error_at(self.at, expected.to_string())
    }

    fn error_at(&self, at: usize, expected: String) -> ExprError {
        let rest = self.text.get(at..).unwrap_or("");
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let end = end.max(rest.chars().next().map_or(0, char::len_utf8));
        let found = match rest.get(..end.min(40)) {
            None | Some("") => "the end".to_string(),
            Some(word) => format!("`{word}`"),
        };
        let column = self.text.get(..at).map_or(0, |s| s.chars().count()) + 1;
        ExprError { column, expected, found }
    }
}

/// Places an expression's leaves on a node's disks for one loglet: rendezvous hashing spreads loglets over the disks, the
/// copies of a quorum lie on different disks, stripes are spread as far as the disks go.
///
/// Errors: [`PlaceError::TooFewDisks`] until the node has more disks.
pub fn place(
    expr: &DriveExpr,
    node: NodeId,
    disks: &[DiskId],
    loglet: LogletId,
) -> Result<DriveSpec, PlaceError> {
    check_bounds(expr, 1)?;
    let mut ranked: Vec<DiskId> = disks.to_vec();
    ranked.sort_by_key(|d| (xxh3_64_with_seed(d.0.as_bytes(), loglet.0), d.0));
    ranked.dedup();
    let needed = disks_needed(expr);
    if ranked.len() < needed {
        return Err(PlaceError::TooFewDisks { expr: expr.to_string(), needed, have: ranked.len() });
    }
    Ok(place_on(expr, node, &ranked))
}

/// Disks without which the expression cannot be placed: copies need one each, stripes may share.
pub fn disks_needed(expr: &DriveExpr) -> usize {
    match expr {
        DriveExpr::Memory => 0,
        DriveExpr::Disk => 1,
        DriveExpr::Quorum { children, .. } => children.iter().map(disks_needed).sum(),
        DriveExpr::Striped { children } => children.iter().map(disks_needed).max().unwrap_or(0),
    }
}

/// A placed drive without its places.
pub fn shape(spec: &DriveSpec) -> DriveExpr {
    let shapes = |children: &[DriveSpec]| children.iter().map(shape).collect();
    match spec {
        DriveSpec::Memory { .. } => DriveExpr::Memory,
        DriveSpec::Disk { .. } => DriveExpr::Disk,
        DriveSpec::Quorum { children, write } => {
            DriveExpr::Quorum { children: shapes(children), write: *write }
        }
        DriveSpec::Striped { children } => DriveExpr::Striped { children: shapes(children) },
    }
}

/// Copies that an entry has at least once it is acknowledged, memory counted as one.
pub fn copies(expr: &DriveExpr) -> usize {
    match expr {
        DriveExpr::Memory | DriveExpr::Disk => 1,
        DriveExpr::Quorum { children, write } => {
            let mut each: Vec<usize> = children.iter().map(copies).collect();
            each.sort_unstable();
            each.iter().take(usize::from(*write)).sum()
        }
        DriveExpr::Striped { children } => children.iter().map(copies).min().unwrap_or(0),
    }
}

pub(crate) fn check_bounds(expr: &DriveExpr, depth: usize) -> Result<(), PlaceError> {
    if depth > DEPTH_MAX {
        return Err(PlaceError::Bounds(format!("more than {DEPTH_MAX} levels")));
    }
    let (children, write) = match expr {
        DriveExpr::Memory | DriveExpr::Disk => return Ok(()),
        DriveExpr::Quorum { children, write } => (children, usize::from(*write)),
        DriveExpr::Striped { children } => (children, 1),
    };
    if children.is_empty() || children.len() > CHILDREN_MAX {
        let n = children.len();
        return Err(PlaceError::Bounds(format!("{n} children, expected 1 to {CHILDREN_MAX}")));
    }
    if write < 1 || write > children.len() {
        let n = children.len();
        return Err(PlaceError::Bounds(format!("write={write}, expected 1 to {n}")));
    }
    children.iter().try_for_each(|child| check_bounds(child, depth + 1))
}

/// Leaves that can make use of a disk of their own.
fn disk_leaves(expr: &DriveExpr) -> usize {
    match expr {
        DriveExpr::Memory => 0,
        DriveExpr::Disk => 1,
        DriveExpr::Quorum { children, .. } | DriveExpr::Striped { children } => {
            children.iter().map(disk_leaves).sum()
        }
    }
}

/// `disks` holds at least `disks_needed(expr)`, best first.
fn place_on(expr: &DriveExpr, node: NodeId, disks: &[DiskId]) -> DriveSpec {
    debug_assert!(disks.len() >= disks_needed(expr), "the caller leaves enough disks");
    match expr {
        DriveExpr::Memory => DriveSpec::Memory { node },
        DriveExpr::Disk => DriveSpec::Disk { node, disk: disks[0] },
        DriveExpr::Quorum { children, write } => {
            let mut rest = disks;
            let placed = shares(children, disks.len()).into_iter().zip(children).map(|(share, child)| {
                let (own, others) = rest.split_at(share);
                rest = others;
                place_on(child, node, own)
            });
            DriveSpec::Quorum { children: placed.collect(), write: *write }
        }
        DriveExpr::Striped { children } => {
            let mut turned = disks.to_vec();
            let placed = children.iter().map(|child| {
                let spec = place_on(child, node, &turned);
                let used = disks_needed(child).checked_rem(turned.len()).unwrap_or(0);
                turned.rotate_left(used);
                spec
            });
            DriveSpec::Striped { children: placed.collect() }
        }
    }
}

/// How many of `have` disks each copy of a quorum gets: what it needs, then the spare ones in turn as long as they help.
fn shares(children: &[DriveExpr], have: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = children.iter().map(disks_needed).collect();
    let useful: Vec<usize> = children.iter().map(disk_leaves).collect();
    let mut spare = have - shares.iter().sum::<usize>();
    while spare > 0 {
        let before = spare;
        for (share, useful) in shares.iter_mut().zip(&useful) {
            if spare > 0 && *share < *useful {
                *share += 1;
                spare -= 1;
            }
        }
        if spare == before {
            break;
        }
    }
    shares
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use uuid::Uuid;

    fn check(text: &str, printed: &str) {
        let expr: DriveExpr = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(expr.to_string(), printed, "{text}");
        assert_eq!(printed.parse::<DriveExpr>().as_ref(), Ok(&expr), "{text}");
    }

    fn fails(text: &str, message: &str) {
        let error = text.parse::<DriveExpr>().expect_err(text);
        assert_eq!(error.to_string(), format!("drive expression, column {message}"), "{text}");
    }

    pub(crate) fn disks(n: u128) -> Vec<DiskId> {
        (1..=n).map(|i| DiskId(Uuid::from_u128(i * 0x1234_5678_9abc_def1))).collect()
    }

    #[test]
    fn expressions_parse_and_print_in_their_shortest_form() {
        check("memory", "memory");
        check("  disk ", "disk");
        check("quorum(3, write=2)", "quorum(3, write=2)");
        check("quorum(3)", "quorum(3, write=2)");
        check("quorum( write = 2 , disk,disk )", "quorum(2, write=2)");
        check("quorum(write=1,disk,memory)", "quorum(write=1, disk, memory)");
        check("quorum(2, memory, write=2)", "quorum(2, write=2, memory)");
        check("striped(4, quorum(3, write=2))", "striped(4, quorum(3, write=2))");
        check("striped(disk, memory)", "striped(disk, memory)");
        check("striped(1)", "striped(1)");
    }

    #[test]
    fn errors_name_the_column_what_is_right_and_what_stands_there() {
        fails("", "1: expected `memory`, `disk`, `quorum(…)` or `striped(…)`, found the end");
        fails("s3(x)", "1: expected `memory`, `disk`, `quorum(…)` or `striped(…)`, found `s3`");
        fails("disk disk", "6: expected the end of the expression, found `disk`");
        fails("quorum", "7: expected `(` and the children, such as `(3)`, found the end");
        fails("quorum(3, write=4)", "17: expected `write` between 1 and 3, the number of copies, found `4`");
        fails("quorum(3, write=0)", "17: expected a number of copies between 1 and 16, found `0`");
        fails("quorum(17)", "8: expected a number of children between 1 and 16, found `17`");
        fails("quorum(3 disk)", "10: expected `,` or `)`, found `disk`");
        fails(
            "quorum(disk, 3)",
            "14: expected a drive; the number of equal children stands first, once, found `3`",
        );
        fails(
            "quorum(3, disk, memory)",
            "8: expected either a number and one drive, or the drives without a number, found `3`",
        );
        fails(
            "quorum(write=1)",
            "1: expected a number of children or the children themselves, found `quorum`",
        );
        fails(
            "striped(2, write=1)",
            "18: expected a number or a drive; only a quorum has `write`, found `1`",
        );
        fails(
            "striped(2, striped(2, striped(2, striped(2))))",
            "34: expected at most 4 levels, found `striped`",
        );
        fails("é", "1: expected `memory`, `disk`, `quorum(…)` or `striped(…)`, found `é`");
        fails("quorum(3, é)", "11: expected `memory`, `disk`, `quorum(…)` or `striped(…)`, found `é`");
    }

    #[test]
    fn placing_says_how_many_directories_are_missing() {
        let expr: DriveExpr = "striped(4, quorum(3, write=2))".parse().unwrap();
        let error = place(&expr, NodeId(1), &disks(1), LogletId(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "drive `striped(4, quorum(3, write=2))` needs 3 disks and this node has 1: start it with 2 more `--data` \
             directories, each on a disk of its own"
        );
        let expr = DriveExpr::Quorum { children: vec![DriveExpr::Disk], write: 2 };
        assert!(matches!(place(&expr, NodeId(1), &disks(1), LogletId(1)), Err(PlaceError::Bounds(_))));
    }

    #[test]
    fn stripes_use_every_disk_and_loglets_spread_evenly() {
        let used = |text: &str, n| {
            let spec = place(&text.parse().unwrap(), NodeId(1), &disks(n), LogletId(7)).unwrap();
            leaf_disks(&spec).len()
        };
        assert_eq!(used("striped(4)", 4), 4);
        assert_eq!(used("striped(2, quorum(2))", 4), 4);
        assert_eq!(used("quorum(2, striped(3))", 6), 6);
        let mut first = std::collections::BTreeMap::new();
        for loglet in 0..400 {
            let spec = place(&DriveExpr::Disk, NodeId(1), &disks(4), LogletId(loglet)).unwrap();
            *first.entry(leaf_disks(&spec)).or_insert(0) += 1;
        }
        assert_eq!(first.len(), 4);
        assert!(first.values().all(|n| (60..=140).contains(n)), "{first:?}");
    }

    fn leaf_disks(spec: &DriveSpec) -> BTreeSet<DiskId> {
        match spec {
            DriveSpec::Memory { .. } => BTreeSet::new(),
            DriveSpec::Disk { disk, .. } => BTreeSet::from([*disk]),
            DriveSpec::Quorum { children, .. } | DriveSpec::Striped { children } => {
                children.iter().flat_map(leaf_disks).collect()
            }
        }
    }

    fn quorums_are_disjoint(spec: &DriveSpec) -> bool {
        match spec {
            DriveSpec::Memory { .. } | DriveSpec::Disk { .. } => true,
            DriveSpec::Striped { children } => children.iter().all(quorums_are_disjoint),
            DriveSpec::Quorum { children, .. } => {
                let sets: Vec<_> = children.iter().map(leaf_disks).collect();
                let all: BTreeSet<_> = sets.iter().flatten().collect();
                all.len() == sets.iter().map(BTreeSet::len).sum::<usize>()
                    && children.iter().all(quorums_are_disjoint)
            }
        }
    }

    pub(crate) fn any_expr() -> impl Strategy<Value = DriveExpr> {
        let leaf = prop_oneof![Just(DriveExpr::Memory), Just(DriveExpr::Disk)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let children = prop::collection::vec(inner, 1..5);
            (children, any::<Option<u8>>()).prop_map(|(children, write)| match write {
                None => DriveExpr::Striped { children },
                Some(w) => {
                    let write = w % children.len() as u8 + 1;
                    DriveExpr::Quorum { children, write }
                }
            })
        })
    }

    #[test]
    fn an_acknowledged_entry_has_so_many_copies() {
        for (expr, n) in [
            ("memory", 1),
            ("disk", 1),
            ("quorum(3, write=2)", 2),
            ("quorum(write=2, disk, quorum(3, write=3), memory)", 2),
            ("striped(4, quorum(2, write=2))", 2),
            ("striped(disk, quorum(2, write=2))", 1),
        ] {
            assert_eq!(copies(&expr.parse().unwrap()), n, "{expr}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_give_the_same_expression_back(expr in any_expr()) {
            prop_assert_eq!(expr.to_string().parse::<DriveExpr>(), Ok(expr));
        }

        #[test]
        fn copies_of_a_quorum_never_share_a_disk(expr in any_expr(), n in 0u128..12, loglet in any::<u64>()) {
            match place(&expr, NodeId(1), &disks(n), LogletId(loglet)) {
                Ok(spec) => prop_assert!(quorums_are_disjoint(&spec)),
                Err(PlaceError::TooFewDisks { needed, have, .. }) => prop_assert!(have < needed),
                Err(e) => prop_assert!(false, "{}", e),
            }
        }

        #[test]
        fn no_text_panics(text in "[a-z0-9(), =é]{0,40}") {
            let _ = text.parse::<DriveExpr>();
        }
    }
}
