//! Blocks: each topic's partitions in order, cut into one run for each of its members. Topics with the same members and
//! partition count are cut alike, so equal keys of both reach one member.

use super::super::image::Partitions;
use super::{MemberSpec, Spec};
use std::collections::BTreeMap;

pub(super) fn assign(spec: &Spec<'_>) -> BTreeMap<String, Partitions> {
    let mut targets: BTreeMap<String, Partitions> =
        spec.members.iter().map(|m| (m.id.to_owned(), Partitions::new())).collect();
    for (topic, of) in &spec.topics {
        let mut members: Vec<&MemberSpec<'_>> =
            spec.members.iter().filter(|m| m.topics.contains(topic)).collect();
        // Static members keep their place over restarts.
        members.sort_by_key(|m| (m.instance_id.is_none(), m.instance_id.unwrap_or(m.id)));
        let Ok(count) = i32::try_from(members.len()) else { continue };
        if count == 0 {
            continue;
        }
        let (base, extra) = (of.partitions / count, of.partitions % count);
        let mut first = 0;
        for (place, member) in (0..count).zip(members) {
            let end = first + base + i32::from(place < extra);
            if let Some(target) = targets.get_mut(member.id).filter(|_| first < end) {
                target.insert(*topic, (first..end).collect());
            }
            first = end;
        }
    }
    targets
}
