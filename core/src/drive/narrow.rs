//! Drives with fewer disks than they ask for: how narrow a segment may be placed, and which segments lack copies. Pure.

use crate::drive::expr::{disks_needed, shape};
use crate::drive::spec::{DriveExpr, DriveSpec};
use crate::types::DiskId;
use std::collections::BTreeSet;

/// Disks without which nothing written to the expression could be acknowledged: a quorum can do without the copies beyond
/// its write quorum.
pub fn disks_least(expr: &DriveExpr) -> usize {
    match expr {
        DriveExpr::Memory => 0,
        DriveExpr::Disk => 1,
        DriveExpr::Quorum { children, write } => {
            let mut each: Vec<usize> = children.iter().map(disks_least).collect();
            each.sort_unstable();
            each.iter().take(usize::from(*write)).sum()
        }
        DriveExpr::Striped { children } => children.iter().map(disks_least).max().unwrap_or(0),
    }
}

/// The expression as wide as `have` disks carry it: where they are too few, quorums go without copies that have no place,
/// with their write quorum unchanged (design 11). Any two of its seal and write quorums still meet, since the new segment's
/// seal quorum is counted from the copies that it has. `None` below [`disks_least`].
pub fn fitted(expr: &DriveExpr, have: usize) -> Option<DriveExpr> {
    if have >= disks_needed(expr) {
        return Some(expr.clone());
    }
    match expr {
        DriveExpr::Memory | DriveExpr::Disk => None,
        DriveExpr::Striped { children } => {
            let children = children.iter().map(|child| fitted(child, have)).collect::<Option<_>>()?;
            Some(DriveExpr::Striped { children })
        }
        DriveExpr::Quorum { children, write } => {
            let mut kept: Vec<(usize, &DriveExpr)> = children.iter().map(|c| (disks_least(c), c)).collect();
            while kept.iter().map(|(least, _)| least).sum::<usize>() > have {
                if kept.len() <= usize::from(*write) {
                    return None;
                }
                // The costliest goes, of equal ones the last.
                let (at, _) = kept.iter().enumerate().max_by_key(|(at, (least, _))| (*least, *at))?;
                kept.remove(at);
            }
            let mut spare = have - kept.iter().map(|(least, _)| least).sum::<usize>();
            let children = kept.into_iter().map(|(least, child)| {
                let more = spare.min(disks_needed(child) - least);
                spare -= more;
                fitted(child, least + more)
            });
            Some(DriveExpr::Quorum { children: children.collect::<Option<_>>()?, write: *write })
        }
    }
}

/// Whether a drive was placed with fewer copies than its expression has, since too few disks lived ([`fitted`]).
pub fn is_narrowed(expr: &DriveExpr, spec: &DriveSpec) -> bool {
    let placed = shape(spec);
    placed != *expr && (0..disks_needed(expr)).any(|have| fitted(expr, have).as_ref() == Some(&placed))
}

/// The disks of a placed drive.
pub fn disks_of(spec: &DriveSpec) -> BTreeSet<DiskId> {
    match spec {
        DriveSpec::Memory { .. } => BTreeSet::new(),
        DriveSpec::Disk { disk, .. } => BTreeSet::from([*disk]),
        DriveSpec::Quorum { children, .. } | DriveSpec::Striped { children } => {
            children.iter().flat_map(disks_of).collect()
        }
    }
}

/// Whether a copy of a quorum lies on a disk that is not one of `live`: the others hold what was acknowledged.
pub fn lacks_copy(spec: &DriveSpec, live: &BTreeSet<DiskId>) -> bool {
    match spec {
        DriveSpec::Memory { .. } | DriveSpec::Disk { .. } => false,
        DriveSpec::Striped { children } => children.iter().any(|child| lacks_copy(child, live)),
        DriveSpec::Quorum { .. } => !disks_of(spec).is_subset(live),
    }
}

/// Whether every address has a place on the disks that are `here`.
pub fn is_readable(spec: &DriveSpec, here: &BTreeSet<DiskId>) -> bool {
    match spec {
        DriveSpec::Memory { .. } => true,
        DriveSpec::Disk { disk, .. } => here.contains(disk),
        DriveSpec::Striped { children } => children.iter().all(|child| is_readable(child, here)),
        DriveSpec::Quorum { children, .. } => children.iter().any(|child| is_readable(child, here)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::expr::tests::{any_expr, disks};
    use crate::drive::expr::{check_bounds, copies, place};
    use crate::types::{LogletId, NodeId};
    use proptest::prelude::*;

    fn spec(text: &str) -> DriveSpec {
        place(&text.parse().unwrap(), NodeId(1), &disks(6), LogletId(1)).unwrap()
    }

    #[test]
    fn where_disks_are_missing_quorums_go_without_copies_down_to_their_write_quorum() {
        for (expr, have, placed) in [
            ("quorum(3, write=2)", 3, Some("quorum(3, write=2)")),
            ("quorum(3, write=2)", 2, Some("quorum(2, write=2)")),
            ("quorum(3, write=2)", 1, None),
            ("quorum(2, write=2)", 1, None),
            ("quorum(3, write=1)", 1, Some("quorum(1, write=1)")),
            ("disk", 0, None),
            ("striped(2, quorum(3, write=2))", 2, Some("striped(2, quorum(2, write=2))")),
            ("quorum(write=2, disk, disk, memory)", 1, Some("quorum(write=2, disk, memory)")),
            (
                "quorum(2, write=2, quorum(3, write=2))",
                5,
                Some("quorum(write=2, quorum(3, write=2), quorum(2, write=2))"),
            ),
            ("quorum(2, write=2, quorum(3, write=2))", 4, Some("quorum(2, write=2, quorum(2, write=2))")),
            ("quorum(2, write=2, quorum(3, write=2))", 3, None),
        ] {
            let parsed: DriveExpr = expr.parse().unwrap();
            let fitted = fitted(&parsed, have);
            assert_eq!(fitted.as_ref().map(ToString::to_string).as_deref(), placed, "{expr} on {have}");
            assert_eq!(fitted.is_some(), have >= disks_least(&parsed), "{expr} on {have}");
        }
        let expr: DriveExpr = "quorum(3, write=2)".parse().unwrap();
        assert!(is_narrowed(&expr, &spec("quorum(2, write=2)")));
        for other in ["quorum(3, write=2)", "disk", "quorum(2, write=1)", "quorum(4, write=2)"] {
            assert!(!is_narrowed(&expr, &spec(other)), "{other}");
        }
    }

    #[test]
    fn a_quorum_lacks_a_copy_without_a_disk_and_is_read_while_one_is_here() {
        for (text, lacks, readable) in [
            ("disk", false, false),
            ("quorum(2, write=2)", true, true),
            ("striped(disk, quorum(2, write=2))", false, false),
            ("striped(2, quorum(2, write=2))", true, true),
        ] {
            let spec = spec(text);
            let all = disks_of(&spec);
            assert!(!lacks_copy(&spec, &all) && is_readable(&spec, &all), "{text}");
            let first = match &spec {
                DriveSpec::Striped { children } => disks_of(&children[0]).into_iter().next(),
                other => disks_of(other).into_iter().next(),
            };
            let rest: BTreeSet<DiskId> = all.iter().copied().filter(|d| Some(*d) != first).collect();
            assert_eq!((lacks_copy(&spec, &rest), is_readable(&spec, &rest)), (lacks, readable), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_fitted_fits_and_is_as_durable(expr in any_expr(), have in 0usize..12) {
            match fitted(&expr, have) {
                None => prop_assert!(have < disks_least(&expr)),
                Some(fit) => {
                    prop_assert!(disks_needed(&fit) <= have && have >= disks_least(&expr));
                    prop_assert!(copies(&fit) >= copies(&expr), "{} is weaker than {}", fit, expr);
                    prop_assert!(check_bounds(&fit, 1).is_ok());
                }
            }
        }
    }
}
