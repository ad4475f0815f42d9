//! The table of APIs: every version that is listed is proven by a test, and the page of the docs says by which.

use crate::proofs::{self, Proof};
use crate::support::{Client, run};
use kafka_protocol::messages as m;
use kafka_protocol::protocol::StrBytes;
use rangeway_gateway::protocol::table::TABLE;

#[test]
fn every_listed_version_of_every_api_is_proven_by_a_test() {
    let proofs = proofs::all();
    for row in TABLE {
        for version in row.served.min..=row.served.max {
            let proven = proofs.iter().any(|proof| proof.key == row.key && proof.versions.contains(&version));
            assert!(proven, "no proof for {} version {version}: add one in tests/it/proofs", row.name);
        }
        assert_eq!(row.advertised.max, row.served.max, "{}", row.name);
        let listed_only = row.advertised.min < row.served.min;
        assert_eq!(listed_only, row.name == "Produce", "{}", row.name);
    }
    for Proof { key, versions, test } in proofs {
        let row = TABLE.iter().find(|row| row.key == key);
        let served =
            row.is_some_and(|r| r.served.min <= *versions.start() && *versions.end() <= r.served.max);
        assert!(served, "{test} proves {versions:?} of API {key}, which are not all served");
    }
}

#[test]
fn produce_0_to_2_are_listed_and_closed() {
    run(async {
        let mut c = Client::new().await;
        let listed = c.call(0, m::ApiVersionsRequest::default()).await;
        let produce = listed.api_keys.iter().find(|k| k.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
        for version in 0..=2i16 {
            let mut c = Client::new().await;
            let mut frame = vec![0, 0, 0, 10, 0, 0];
            frame.extend(version.to_be_bytes());
            frame.extend([0, 0, 0, 1, 0xff, 0xff]);
            c.send_bytes(&frame).await;
            assert!(c.is_closed().await);
        }
    });
}

#[test]
fn software_names_are_checked_and_features_shown() {
    run(async {
        let mut c = Client::new().await;
        for (name, want) in [("", 42), ("a b", 42), ("ok-1.0", 0)] {
            let word = StrBytes::from_static_str(name);
            let request = m::ApiVersionsRequest::default()
                .with_client_software_name(word.clone())
                .with_client_software_version(word);
            let response = c.call(4, request).await;
            assert_eq!((response.error_code, response.api_keys.is_empty()), (want, want != 0), "{name:?}");
        }
    });
}

#[test]
fn the_docs_list_the_table() {
    let mut page = String::from(
        "# Kafka APIs\n\nWhat a client finds in ApiVersions, and the tests that prove it: each runs once for every version that is \
         named and must have had\nthat version answered (`gateway/tests/it/proofs`). Written from these tests and the table in \
         `gateway/src/protocol/table.rs`; a test compares\nthem and `UPDATE_DOCS=1 cargo test -p rangeway-gateway --test it the_docs` \
         writes this page anew.\n\n| key | API | versions | what it does | proven by |\n|---|---|---|---|---|\n",
    );
    let proofs = proofs::all();
    for row in TABLE {
        let note = if row.advertised == row.served {
            String::new()
        } else {
            format!(" ({} to {} are closed)", row.advertised.min, row.served.min - 1)
        };
        let (from, to) = (row.advertised.min, row.advertised.max);
        let proven: Vec<String> = proofs
            .iter()
            .filter(|proof| proof.key == row.key)
            .map(|proof| format!("`{}` ({}-{})", proof.test, proof.versions.start(), proof.versions.end()))
            .collect();
        let (name, doc, proven) = (row.name, row.doc, proven.join(", "));
        page += &format!("| {} | {name} | {from}-{to}{note} | {doc} | {proven} |\n", row.key);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kafka-apis.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/kafka-apis.md is not what the table says: run with UPDATE_DOCS=1");
}

#[test]
fn rows_are_in_order_and_within_what_the_codec_can_do() {
    assert!(TABLE.is_sorted_by_key(|row| row.key));
    for row in TABLE {
        let key = m::ApiKey::try_from(row.key).unwrap();
        let able = key.valid_versions();
        assert!(able.min <= row.served.min && row.served.max <= able.max, "{}: {able}", row.name);
        for version in row.served.min..=row.served.max {
            let header = if version >= row.flexible { 2 } else { 1 };
            assert_eq!(key.request_header_version(version), header, "{} {version}", row.name);
        }
    }
}
