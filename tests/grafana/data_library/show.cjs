// Show panels with Grafana's own data library: read [{panel, results}] from stdin, write what each panel shows.
//
// `results` are series as the data source returns them: {refId, legend, labels, t, value}, with times in seconds.
// The steps are those of Grafana: frames of the data source, transformations, field configuration, display texts.
console.info = console.log = console.error; // a package prints an advertisement
const { Window } = require("happy-dom");

const page = new Window();
Object.assign(globalThis, { window: page, document: page.document, localStorage: page.localStorage });
globalThis.navigator ??= page.navigator;
const grafana = require("@grafana/data");
const { lastValueFrom } = require("rxjs");

const THEME = grafana.createTheme();
const APP_ONLY = new Set(["partitionByValues"]); // Grafana's application has it, the library has not

const transformations = new Map(Object.values(grafana.standardTransformers).map((one) => [one.id, one]));
grafana.standardTransformersRegistry.setInit(() =>
  [...transformations].map(([id, one]) => ({ id, name: one.name, transformation: one })),
);

const properties = new grafana.FieldConfigOptionsRegistry(() =>
  ["unit", "min", "max", "decimals", "noValue", "displayName", "color"]
    .map((path) => ({ id: path, path, name: path, process: grafana.identityOverrideProcessor }))
    .concat([
      { id: "links", path: "links", name: "links", process: grafana.dataLinksOverrideProcessor },
      { id: "thresholds", path: "thresholds", name: "thresholds", process: grafana.thresholdsOverrideProcessor },
    ])
    .map((item) => ({ ...item, shouldApply: () => true, getItemsCount: () => 0 })),
);

function valuesOf(one) {
  const config = one.legend ? { displayNameFromDS: one.legend } : {};
  return grafana.toDataFrame({
    refId: one.refId,
    fields: [
      { name: "Time", type: grafana.FieldType.time, values: one.t.map((t) => 1000 * t), config: {} },
      { name: "Value", type: grafana.FieldType.number, values: one.value, labels: one.labels, config },
    ],
  });
}

// The Prometheus data source returns one frame a query in the format "table", with a field for each label.
function tablesOf(panel, results) {
  const several = panel.targets.length > 1;
  return panel.targets.flatMap((target) => {
    const own = results.filter((one) => one.refId === target.refId);
    if (own.length === 0) {
      return [];
    }
    const labels = [...new Set(own.flatMap((one) => Object.keys(one.labels)))].sort();
    const column = (name, type, values) => ({ name, type, values, config: {} });
    return grafana.toDataFrame({
      refId: target.refId,
      fields: [
        column("Time", grafana.FieldType.time, own.map((one) => 1000 * one.t.at(-1))),
        ...labels.map((name) => column(name, grafana.FieldType.string, own.map((one) => one.labels[name] ?? ""))),
        column(several ? `Value #${target.refId}` : "Value", grafana.FieldType.number, own.map((one) => one.value.at(-1))),
      ],
    });
  });
}

const asText = (value) => grafana.formattedValueToString(value);

async function show({ panel, results }) {
  const table = panel.targets.some((target) => target.format === "table");
  const steps = (panel.transformations ?? []).filter((step) => !APP_ONLY.has(step.id));
  const frames = table ? tablesOf(panel, results) : results.map(valuesOf);
  const changed = await lastValueFrom(grafana.transformDataFrame(steps, frames, { interpolate: (text) => text }));
  const shared = { fieldConfig: panel.fieldConfig, replaceVariables: (text) => text, theme: THEME, timeZone: "utc" };
  const data = grafana.applyFieldOverrides({ ...shared, data: changed, fieldConfigRegistry: properties });
  if (panel.options.reduceOptions) {
    const reduceOptions = panel.options.reduceOptions;
    const shown = grafana.getFieldDisplayValues({ ...shared, data, reduceOptions });
    return { figures: shown.map((one) => ({ name: one.display.title, text: asText(one.display), color: one.display.color })) };
  }
  if (table) {
    const fields = data.flatMap((frame) => frame.fields);
    return {
      columns: fields.map((field) => grafana.getFieldDisplayName(field)),
      links: fields.map((field) => (field.config.links ?? []).map((link) => link.url)),
      rows: (fields[0]?.values ?? []).map((_, row) =>
        fields.map((field) => ({ value: field.values[row] ?? null, text: asText(field.display(field.values[row])) })),
      ),
      frames: data.length,
    };
  }
  const calcs = panel.options.legend.calcs;
  return {
    lines: data.map((frame) => {
      const field = frame.fields[1];
      const reduced = grafana.reduceField({ field, reducers: calcs });
      return {
        name: grafana.getFieldDisplayName(field, frame, data),
        calcs: Object.fromEntries(calcs.map((calc) => [calc, { value: reduced[calc], text: asText(field.display(reduced[calc])) }])),
      };
    }),
  };
}

async function main() {
  let text = "";
  for await (const piece of process.stdin) {
    text += piece;
  }
  const shown = [];
  for (const each of JSON.parse(text)) {
    shown.push(await show(each));
  }
  process.stdout.write(JSON.stringify(shown), () => process.exit(0));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
